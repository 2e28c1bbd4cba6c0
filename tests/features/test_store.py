"""Rows on disk: nothing lost, nothing doubled, nothing half written, whatever stops a run."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from fewtag.data.images import LabelledImages, Picture
from fewtag.errors import InputError
from fewtag.features.backbone import Backbone
from fewtag.features.store import MemoryRows, RowFile, feature_rows, pixel_rows
from fewtag.features.weights import Preprocessing

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
    pixels = Picture.pixels

    def spy(picture: Picture, size: int) -> np.ndarray:
        names.append(picture.path.name)
        return pixels(picture, size)

    monkeypatch.setattr(Picture, "pixels", spy)
    return names


def expected_features(images: LabelledImages) -> Tensor:
    pixels = torch.from_numpy(np.stack([picture.pixels(SIZE) for picture in images.pictures]))
    with torch.no_grad():
        return make_backbone()(pixels).half()


def make_file(folder: Path, count: int = 5) -> RowFile:
    return RowFile(folder / "rows", count=count, shape=(2, 3, 1), dtype="float16")


def values(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 2, 3, 1)).astype(np.float16)


def test_rows_come_back_as_they_went_in_even_to_another_process_later(tmp_path: Path) -> None:
    make_file(tmp_path).write([3, 0, 4], values(3))
    again = make_file(tmp_path)
    assert np.array_equal(again.take([0, 4, 3, 0]).numpy(), values(3)[[1, 2, 0, 1]])
    assert again.missing() == [1, 2]
    assert len(again) == 5


def test_a_row_written_again_takes_the_new_value_and_no_other_changes(tmp_path: Path) -> None:
    file = make_file(tmp_path)
    file.write(range(5), values(5))
    file.write([2], np.zeros((1, 2, 3, 1)))
    expected = values(5)
    expected[2] = 0
    assert np.array_equal(file.take(range(5)).numpy(), expected)


def test_take_returns_the_rows_asked_for_and_reads_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = make_file(tmp_path, count=100), list[int]()
    file.write(range(100), values(100))
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: read.append(preadv(*given)))
    taken = file.take([70, 7])
    assert np.array_equal(taken.numpy(), values(100)[[70, 7]])
    assert sum(read) == taken.untyped_storage().nbytes() == 2 * (2 * 3 * 2)


@pytest.mark.parametrize("row", [5, -1])
def test_a_row_that_is_not_there_is_not_made_up(tmp_path: Path, row: int) -> None:
    with pytest.raises(AssertionError, match="a row of this file"):
        make_file(tmp_path).take([row])


def test_rows_in_memory_are_taken_the_same_way() -> None:
    tensor = torch.arange(12.0).view(4, 3, 1, 1)
    rows = MemoryRows(tensor)
    assert len(rows) == 4
    assert torch.equal(rows.take([2, 0, 2]), torch.stack([tensor[2], tensor[0], tensor[2]]))
    assert rows.take([]).shape == (0, 3, 1, 1)


@pytest.mark.parametrize("other", [{"count": 6}, {"shape": (3, 2, 1)}, {"dtype": "float32"}])
def test_a_folder_of_other_rows_is_refused_and_left_alone(tmp_path: Path, other: dict[str, object]) -> None:
    make_file(tmp_path).write(range(5), values(5))
    settings = {"count": 5, "shape": (2, 3, 1), "dtype": "float16"} | other
    with pytest.raises(InputError, match=r"holds other rows .*; remove it"):
        RowFile(tmp_path / "rows", **settings)  # type: ignore[arg-type]
    assert make_file(tmp_path).missing() == []


def test_a_cache_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"cannot write to the cache .*rows: .*name another --cache"):
        make_file(tmp_path)


def test_a_header_that_was_not_finished_does_not_spoil_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, content: bytes) -> None:
        path.write_text(content[:5].decode())
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", half)
        with pytest.raises(InputError, match="No space left"):
            make_file(tmp_path)
    assert make_file(tmp_path).missing() == [0, 1, 2, 3, 4]


def full_after(bytes_left: int, *, short: bool) -> Callable[[int, bytes, int], int]:
    """An os.pwrite onto a disk that fills up; a real one may first write a part of what it is given."""
    pwrite, left = os.pwrite, bytes_left

    def write(handle: int, data: bytes, offset: int) -> int:
        nonlocal left
        if len(data) > left and not (short and left):
            raise OSError(errno.ENOSPC, "No space left on device")
        written = pwrite(handle, data[:left], offset)
        left -= written
        return written

    return write


@pytest.mark.parametrize("short", [False, True])
def test_a_full_disk_is_one_sentence_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    file = make_file(tmp_path)
    file.write([0, 1], values(5)[:2])
    with monkeypatch.context() as patch:
        # room for one row and a half
        patch.setattr(os, "pwrite", full_after(18, short=short))
        with pytest.raises(InputError, match=r"No space left.*; free some room .*\(what is finished is kept\)"):
            file.write([2, 3], values(5)[2:4])
    assert file.missing() == [2, 3, 4]
    assert np.array_equal(file.take([0, 1]).numpy(), values(5)[:2])
    file.write([2, 3, 4], values(5)[2:])
    assert np.array_equal(file.take(range(5)).numpy(), values(5))


def test_a_last_row_cut_short_is_not_called_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, pwrite = make_file(tmp_path), os.pwrite
    # as if the room came back between the row and its mark
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: pwrite(handle, data[:7], offset))
    with pytest.raises(InputError, match="No space left"):
        file.write([0], values(1))
    assert file.missing() == [0, 1, 2, 3, 4]


def test_a_row_is_marked_only_once_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_file(tmp_path)

    def fail(handle: int) -> None:
        raise OSError(errno.EIO, f"Input/output error of {handle}")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(InputError, match="Input/output error"):
        file.write([0], values(1))
    assert file.missing() == [0, 1, 2, 3, 4]


def test_features_are_the_backbones_maps_in_half_precision(images: LabelledImages, tmp_path: Path) -> None:
    backbone, told = make_backbone().train(), list[int]()
    file = feature_rows(images, backbone, tmp_path / "cache", batch=4, advance=told.append)
    assert file.take([0]).dtype == torch.float16
    torch.testing.assert_close(file.take(range(COUNT)), expected_features(images), rtol=1e-3, atol=1e-3)
    assert sum(told) == COUNT
    assert backbone.training, "it is left in the mode it was in"


def test_pixels_are_the_squashed_pictures(images: LabelledImages, tmp_path: Path, decoded: list[str]) -> None:
    for _ in range(2):
        taken = pixel_rows(images, SIZE, tmp_path / "cache").take(range(COUNT))
        assert sorted(decoded) == sorted(images.ids), "each is decoded once, though asked for twice"
    assert np.array_equal(taken.numpy(), np.stack([picture.pixels(SIZE) for picture in images.pictures]))


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
    file = feature_rows(images, backbone, tmp_path / "cache", batch=3, advance=told.append)
    assert backbone.network.passes == [1, 3, 1]
    assert sorted(decoded) == ["6.jpg", "7.jpg", "8.jpg", "9.jpg"]
    assert told == [6, 3, 1]
    torch.testing.assert_close(file.take(range(COUNT)), expected_features(images), rtol=1e-3, atol=1e-3)

    decoded.clear()
    feature_rows(images, make_backbone(), tmp_path / "cache")
    assert decoded == []


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
    file = feature_rows(images, make_backbone(), cache, batch=3)
    assert file.missing() == []
    torch.testing.assert_close(file.take(range(COUNT)), expected_features(images), rtol=1e-3, atol=1e-3)


def cache_name(images: LabelledImages, cache: Path, backbone: Backbone | None = None) -> str:
    return feature_rows(images, backbone or make_backbone(), cache).folder.name


def test_other_bytes_are_other_rows(images: LabelledImages, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = cache_name(images, cache)
    assert cache_name(images, cache) == before
    Image.new("RGB", (12, 9), "red").save(images.pictures[2].path)
    changed = feature_rows(images, make_backbone(), cache)
    assert changed.folder.name != before
    torch.testing.assert_close(changed.take(range(COUNT)), expected_features(images), rtol=1e-3, atol=1e-3)


def test_other_bytes_of_the_same_length_are_other_rows(images: LabelledImages, tmp_path: Path) -> None:
    before = cache_name(images, tmp_path / "cache")
    path = images.pictures[2].path
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert cache_name(images, tmp_path / "cache") != before


def test_other_pictures_weights_or_sizes_are_other_rows(images: LabelledImages, tmp_path: Path) -> None:
    cache, other = tmp_path / "cache", make_backbone()
    with torch.no_grad():
        other.network.convolution.bias[0] += 1
    names = {cache_name(images, cache), cache_name(images.select([1, 0]), cache), cache_name(images, cache, other)}
    names |= {pixel_rows(images, size, cache).folder.name for size in (8, 9)}
    assert len(names) == 5
