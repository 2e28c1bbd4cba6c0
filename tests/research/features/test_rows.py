"""A data set's rows in the cache: extracted once, wherever its pictures lie and whatever stops a run."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fewtag.cache import FILE, content_digest
from fewtag.cache_upkeep import CacheUpkeep
from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages
from fewtag.research.features import rows as rows_module
from fewtag.research.features.backbone import Backbone, JoinedBackbone
from fewtag.research.features.rows import MemoryRows, drop_features, feature_rows, pixel_rows
from fewtag.research.features.weights import Preprocessing

COUNT, SIZE = 10, 8


class TinyNetwork(nn.Module):
    """One convolution; keeps how many images each pass saw, and stops in the pass that `stop_at` names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 4, kernel_size=4, stride=4)
        self.passes: list[int] = []
        self.stop_at: int | None = None

    def forward_features(self, pixels: Tensor) -> Tensor:
        if len(self.passes) == self.stop_at:
            raise KeyboardInterrupt
        self.passes.append(len(pixels))
        return self.convolution(pixels)


def make_backbone() -> Backbone:
    preprocessing = Preprocessing((100.0, 110.0, 120.0), (60.0, 50.0, 40.0))
    return Backbone(
        "tiny", TinyNetwork(), size=SIZE, channels=4, layout="NCHW", preprocessing=preprocessing, variant="timm"
    ).eval()


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """So that a batch of three is one pass, whatever the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def images(tmp_path: Path) -> LabelledImages:
    generator = np.random.default_rng(0)
    paths = [tmp_path / f"{number}.jpg" for number in range(COUNT)]
    for path in paths:
        Image.fromarray(generator.integers(0, 256, (12, 9, 3), dtype=np.uint8)).save(path)
    targets = np.ones((COUNT, 1), dtype=bool)
    return LabelledImages(tuple(path.name for path in paths), tuple(map(Picture, paths)), ("dog",), targets)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that were decoded, a name for each time."""
    names: list[str] = []
    squash = rows_module.squash_bytes

    def spy(data: bytes, name: str, size: int) -> np.ndarray:
        names.append(Path(name).name)
        return squash(data, name, size)

    rows_module.reading_key(SIZE)
    monkeypatch.setattr(rows_module, "squash_bytes", spy)
    return names


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pictures that were read from the disk, a name for each time."""
    names: list[str] = []
    original = Picture.read

    def spy(picture: Picture) -> bytes:
        names.append(picture.path.name)
        return original(picture)

    monkeypatch.setattr(Picture, "read", spy)
    return names


def expected_features(images: LabelledImages) -> Tensor:
    pixels = torch.from_numpy(np.stack([picture.pixels(SIZE) for picture in images.pictures]))
    with torch.no_grad():
        return make_backbone()(pixels).half()


def assert_features(rows: object, images: LabelledImages) -> None:
    torch.testing.assert_close(rows.take(range(len(images))), expected_features(images), rtol=1e-3, atol=1e-3)


def copied(images: LabelledImages, folder: Path) -> LabelledImages:
    """The same pictures elsewhere, younger."""
    folder.mkdir()
    pictures = [
        replace(picture, path=Path(shutil.copyfile(picture.path, folder / f"copy{number}.jpg")))
        for number, picture in enumerate(images.pictures)
    ]
    return replace(images, pictures=tuple(pictures))


def test_rows_in_memory_are_taken_by_number() -> None:
    tensor = torch.arange(12.0).view(4, 3, 1, 1)
    rows = MemoryRows(tensor)
    assert len(rows) == 4
    assert torch.equal(rows.take([2, 0, 2]), torch.stack([tensor[2], tensor[0], tensor[2]]))
    assert rows.take([]).shape == (0, 3, 1, 1)


def test_features_are_the_backbones_maps_in_half_precision(images: LabelledImages, tmp_path: Path) -> None:
    backbone, told = make_backbone().train(), list[int]()
    rows = feature_rows(images, backbone, tmp_path / "cache", batch=4, advance=told.append)
    assert rows.take([0]).dtype == torch.float16
    assert rows.take([]).shape == (0, 4, 2, 2)
    assert_features(rows, images)
    assert torch.equal(rows.take([3, 1, 3]), rows.take(range(COUNT))[[3, 1, 3]])
    assert sum(told) == len(rows) == COUNT
    assert backbone.training, "it is left in the mode it was in"


@pytest.mark.parametrize("row", [COUNT, -1])
def test_a_row_that_is_not_there_is_not_made_up(images: LabelledImages, tmp_path: Path, row: int) -> None:
    with pytest.raises(AssertionError, match="a row of this data set"):
        pixel_rows(images, SIZE, tmp_path / "cache").take([row])


def test_pixels_are_the_squashed_pictures(images: LabelledImages, tmp_path: Path, decoded: list[str]) -> None:
    for _ in range(2):
        taken = pixel_rows(images, SIZE, tmp_path / "cache").take(range(COUNT))
        assert sorted(decoded) == sorted(str(name) for name in images.ids), "decoded once, though asked for twice"
    assert np.array_equal(taken.numpy(), np.stack([picture.pixels(SIZE) for picture in images.pictures]))


def test_two_networks_read_and_decode_a_picture_once(
    images: LabelledImages, tmp_path: Path, read: list[str], decoded: list[str]
) -> None:
    other = make_backbone()
    with torch.no_grad():
        other.network.convolution.bias[0] += 1
    rows = feature_rows(images, JoinedBackbone([make_backbone(), other]), tmp_path / "cache", batch=4)
    assert sorted(read) == sorted(decoded) == sorted(images.ids)
    taken, expected = rows.take(range(COUNT)), expected_features(images)
    torch.testing.assert_close(taken[:, :4], expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(taken[:, 4], expected[:, 0] + 1, rtol=3e-3, atol=3e-3)


def test_a_run_that_was_stopped_goes_on_with_what_is_missing(
    images: LabelledImages, tmp_path: Path, decoded: list[str]
) -> None:
    backbone, told = make_backbone(), list[int]()
    backbone.network.stop_at = 3  # one pass to learn the maps' shape, two batches, then the kill
    with pytest.raises(KeyboardInterrupt):
        feature_rows(images, backbone, tmp_path / "cache", batch=3)
    assert backbone.network.passes == [1, 3, 3]

    decoded.clear()
    backbone = make_backbone()
    rows = feature_rows(images, backbone, tmp_path / "cache", batch=3, advance=told.append)
    assert backbone.network.passes == [1, 3, 1]
    # a set: threads of the stopped run may still read ahead
    assert {*decoded} == {"6.jpg", "7.jpg", "8.jpg", "9.jpg"}
    assert sum(told) == COUNT
    assert_features(rows, images)

    decoded.clear()
    feature_rows(images, make_backbone(), tmp_path / "cache")
    assert decoded == []


def test_a_data_set_that_moved_is_not_extracted_again(
    images: LabelledImages, tmp_path: Path, decoded: list[str]
) -> None:
    feature_rows(images, make_backbone(), tmp_path / "cache")
    decoded.clear()
    moved = copied(images, tmp_path / "elsewhere").select([4, 2, 9])
    for number, picture in enumerate(images.pictures):
        picture.path.unlink()
        assert not picture.path.exists(), number
    rows = feature_rows(moved, make_backbone(), tmp_path / "cache")
    assert decoded == []
    assert_features(rows, moved)


def test_a_stretch_of_an_archive_is_the_same_picture(
    images: LabelledImages, tmp_path: Path, decoded: list[str]
) -> None:
    pixel_rows(images, SIZE, tmp_path / "cache")
    decoded.clear()
    content = [picture.path.read_bytes() for picture in images.pictures]
    archive = tmp_path / "all.tar"
    archive.write_bytes(b"".join(content))
    starts = np.cumsum([0, *map(len, content)])
    pictures = tuple(Picture(archive, int(start), len(data)) for start, data in zip(starts, content, strict=False))
    rows = pixel_rows(replace(images, pictures=pictures), SIZE, tmp_path / "cache")
    assert decoded == []
    assert np.array_equal(rows.take([7])[0].numpy(), images.pictures[7].pixels(SIZE))


def test_a_picture_given_twice_is_kept_once(images: LabelledImages, tmp_path: Path) -> None:
    for picture in images.pictures[1:]:
        shutil.copyfile(images.pictures[0].path, picture.path)
    rows = pixel_rows(images, SIZE, tmp_path / "cache")
    assert len(rows.extractor.space) == 1
    assert np.array_equal(rows.take([8])[0].numpy(), images.pictures[0].pixels(SIZE))


def test_a_truncated_picture_stops_extraction_by_name_until_it_is_mended(
    images: LabelledImages, tmp_path: Path
) -> None:
    path, cache = images.pictures[7].path, tmp_path / "cache"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    reason = r"image .*7\.jpg cannot be decoded: it is truncated or damaged"
    with pytest.raises(InputError, match=reason):
        feature_rows(images, make_backbone(), cache, batch=3)
    with pytest.raises(InputError, match=reason):
        pixel_rows(images, SIZE, cache)
    path.write_bytes(whole)
    assert_features(feature_rows(images, make_backbone(), cache, batch=3), images)


def test_other_bytes_are_another_picture_though_size_and_time_are_the_same(
    images: LabelledImages, tmp_path: Path
) -> None:
    cache, path = tmp_path / "cache", images.pictures[2].path
    feature_rows(images, make_backbone(), cache)
    length, stat = len(path.read_bytes()), path.stat()
    Image.new("RGB", (12, 9), "red").save(path)
    path.write_bytes(path.read_bytes() + bytes(length - path.stat().st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (length, stat.st_mtime_ns)
    assert_features(feature_rows(images, make_backbone(), cache), images)


def test_other_weights_sizes_or_ways_of_reading_are_other_rows(
    images: LabelledImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, other = tmp_path / "cache", make_backbone()
    with torch.no_grad():
        other.network.convolution.bias[0] += 1
    assert_features(feature_rows(images, make_backbone(), cache), images)
    changed = feature_rows(images, other, cache).take(range(COUNT))
    torch.testing.assert_close(changed[:, 0], expected_features(images)[:, 0] + 1, rtol=3e-3, atol=3e-3)
    assert pixel_rows(images, 9, cache).take([0]).shape == (1, 3, 9, 9)
    pixel_rows(images, SIZE, cache)
    squash = rows_module.squash_bytes
    monkeypatch.setattr(rows_module, "squash_bytes", lambda *given: 255 - squash(*given))
    rows_module.reading_key.cache_clear()
    inverted = pixel_rows(images, SIZE, cache).take([3])[0].numpy()
    rows_module.reading_key.cache_clear()
    assert np.array_equal(inverted, 255 - images.pictures[3].pixels(SIZE))


def test_a_network_is_made_ready_once_and_again_when_it_has_learnt(images: LabelledImages, tmp_path: Path) -> None:
    backbone = make_backbone()
    for batch in (COUNT, COUNT - 1):
        feature_rows(images, backbone, tmp_path / "cache", batch=batch)
    assert backbone.network.passes == [1, 4, 4, 2], "one to learn the maps' shape, then the pictures"
    with torch.no_grad():
        backbone.network.convolution.bias[0] += 1
    learnt = feature_rows(images, backbone, tmp_path / "cache").take(range(COUNT))
    torch.testing.assert_close(learnt[:, 0], expected_features(images)[:, 0] + 1, rtol=3e-3, atol=3e-3)


def damage(cache: Path, picture: Picture) -> None:
    """Overwrites the picture's row."""
    connection = sqlite3.connect(cache / FILE)
    with connection:
        connection.execute(
            "UPDATE contents SET content = zeroblob(length(content)) WHERE id = (SELECT id FROM rows WHERE digest = ?)",
            (content_digest(picture.read()),),
        )
    connection.close()


def test_a_damaged_row_is_made_of_its_picture_again(
    images: LabelledImages, tmp_path: Path, decoded: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache"
    pixel_rows(images, SIZE, cache)
    damage(cache, images.pictures[2])
    decoded.clear()
    rows = pixel_rows(images, SIZE, cache)
    for _ in range(2):
        taken = rows.take([5, 2, 2])
        assert np.array_equal(taken.numpy(), np.stack([images.pictures[row].pixels(SIZE) for row in (5, 2, 2)]))
    assert decoded == ["2.jpg"]
    assert ["has damaged rows" in record.message for record in caplog.records] == [True]
    pixel_rows(images, SIZE, cache).take(range(COUNT))
    assert decoded == ["2.jpg"], "it was appended anew"


def test_a_picture_that_changed_since_does_not_replace_a_damaged_row(images: LabelledImages, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    rows = pixel_rows(images, SIZE, cache)
    damage(cache, images.pictures[2])
    Image.new("RGB", (12, 9), "red").save(images.pictures[2].path)
    with pytest.raises(InputError, match=r"image .*2\.jpg changed while it was in use; start again"):
        rows.take([2])


def test_rows_that_do_not_fit_are_made_again_and_it_is_said(
    images: LabelledImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEWTAG_CACHE_LIMIT", "1KB")
    rows = pixel_rows(images, SIZE, tmp_path / "cache")
    (record,) = caplog.records
    assert record.getMessage().startswith("10 rows (8 × 8 pixels) take 1.9 KB, but the cache at most 1.0 KB: ")
    assert len(rows.extractor.space) == 0
    assert np.array_equal(rows.take(range(COUNT)).numpy(), np.stack([image.pixels(SIZE) for image in images.pictures]))


def test_a_row_evicted_while_it_is_in_use_is_made_again(
    images: LabelledImages, tmp_path: Path, decoded: list[str]
) -> None:
    rows = feature_rows(images, make_backbone(), tmp_path / "cache")
    with closing(CacheUpkeep(tmp_path / "cache")) as cache:
        cache.prune(0)
    decoded.clear()
    for _ in range(2):
        assert_features(rows, images)
    assert sorted(decoded) == sorted(images.ids), "once, and kept again"


def test_features_of_one_network_are_dropped_alone(images: LabelledImages, tmp_path: Path) -> None:
    other = make_backbone()
    with torch.no_grad():
        other.network.convolution.bias[0] += 1
    feature_rows(images, make_backbone(), tmp_path)
    feature_rows(images, other, tmp_path)
    drop_features(other, tmp_path)
    assert len(CacheUpkeep(tmp_path)) == COUNT


def test_without_a_place_for_a_cache_rows_are_made_when_they_are_taken(
    images: LabelledImages, caplog: pytest.LogCaptureFixture
) -> None:
    rows = feature_rows(images, make_backbone(), images.pictures[0].path / "cache")
    assert_features(rows, images)
    assert ["Not a directory" in record.getMessage() for record in caplog.records] == [True]


def test_a_cleared_cache_is_filled_again(images: LabelledImages, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    rows = pixel_rows(images, SIZE, cache)
    rows.extractor.space.cache.close()
    CacheUpkeep(cache).clear()
    assert len(rows.take(range(COUNT))) == COUNT
    again = pixel_rows(images, SIZE, cache)
    assert np.array_equal(again.take([4])[0].numpy(), images.pictures[4].pixels(SIZE))
