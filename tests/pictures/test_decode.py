"""Decoding: every common format to what a person sees, and one sentence about what cannot be decoded."""

import io
import struct
import subprocess
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewtag.errors import InputError
from fewtag.pictures import decode as decoding
from fewtag.pictures.decode import FORMATS, decode, squash, squash_bytes, upright
from fewtag.pictures.files import Picture
from fewtag.pictures.prefetch import prefetch

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "bmp", "tiff", "avif"])
def test_every_common_format_opens_in_rgb(make, ending):
    image = Picture(make(f"a.{ending}", "red")).open()
    assert (image.mode, image.size) == ("RGB", (8, 6))
    assert np.abs(np.asarray(image).astype(int) - [255, 0, 0]).max() < 8


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_orientation_is_applied(tmp_path, ending, orientation):
    upright = Image.new("RGB", (64, 32), "black")
    upright.paste("white", (0, 0, 32, 32))
    turned = upright.rotate({3: 180, 6: 90, 8: 270}[orientation], expand=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned.save(tmp_path / f"a.{ending}", exif=exif)
    seen = np.asarray(Picture(tmp_path / f"a.{ending}").open().convert("L"))
    assert seen.shape == (32, 64)
    assert seen[:, :24].min() > 200
    assert seen[:, 40:].max() < 50


@pytest.mark.parametrize("name", ["upright.heic", "turned.heic"])
def test_a_phones_heic_is_read_and_turned_once(name):
    """Of our own making; the second one lies on its side, and says so in EXIF and in a box, as phones do."""
    image = Picture(DATA / name).open()
    seen = np.asarray(image.convert("L"))
    assert seen.shape == (32, 64)
    assert seen[:, :24].min() > 200
    assert seen[:, 40:].max() < 50
    assert (np.asarray(upright(image, "again")) == np.asarray(image)).all(), "what was turned is not turned again"


@pytest.mark.parametrize(
    "how", [{}, {"progressive": True}, {"restart_marker_rows": 1}, {"subsampling": 0}, {"quality": 97}], ids=str
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_jpeg_that_lacks_its_end_marker_alone_is_read_and_one_that_lacks_more_is_not(how: dict, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (6, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((90, 70)).convert(mode).save(file, "JPEG", **how)
    whole = file.getvalue()
    seen = np.asarray(decode(whole, "a.jpg"))
    assert whole.endswith(b"\xff\xd9")
    for cut in (1, 2):
        assert (np.asarray(decode(whole[:-cut], "a.jpg")) == seen).all()
        assert decode(whole[:-cut], "a.jpg", at_least=20).size == decode(whole, "a.jpg", at_least=20).size
    # the last bytes one by one, scans and restart markers wherever they are, and the middle of the data
    for length in {*range(len(whole) // 3, len(whole) - 60, 7), *range(len(whole) - 60, len(whole) - 2)}:
        try:
            read = np.asarray(decode(whole[:length], "a.jpg"))
        except InputError:
            continue
        assert (read == seen).all(), "bits that fill up the last byte may be missing, pixels may not"


def test_a_truncated_heic_is_named(tmp_path):
    (tmp_path / "cut.heic").write_bytes((DATA / "upright.heic").read_bytes()[:-100])
    with pytest.raises(InputError, match=r"cut\.heic cannot be decoded"):
        Picture(tmp_path / "cut.heic").open()


def test_an_eps_named_jpg_starts_no_program_and_is_refused(tmp_path, monkeypatch):
    started = []
    for name in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, name, lambda *given, **_also: started.append(given))
    Image.new("RGB", (10, 10)).save(tmp_path / "holiday.eps")
    (tmp_path / "holiday.eps").rename(tmp_path / "holiday.jpg")
    with pytest.raises(InputError, match=r"holiday\.jpg cannot be decoded: it is no image"):
        Picture(tmp_path / "holiday.jpg").open()
    assert not started


def test_the_formats_are_those_and_no_others():
    assert set(FORMATS) == {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"}


@pytest.mark.parametrize("ending", ["ppm", "tga", "ico", "pcx", "eps", "pdf"])
def test_what_other_plugins_read_is_not_read(make, ending):
    path = make(f"a.{ending}", size=(16, 16))
    with pytest.raises(InputError, match="it is no image"):
        Picture(path).open()


def test_damaged_exif_does_not_damage_the_picture(tmp_path):
    Image.new("RGB", (8, 6)).save(tmp_path / "a.jpg", exif=b"Exif\x00\x00MM\x00*\x00\x00\xff\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Picture(tmp_path / "a.jpg").open().size == (8, 6)


def test_an_animation_counts_by_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert Picture(tmp_path / "a.gif").open().getpixel((0, 0)) == (255, 0, 0)


def test_transparent_pixels_are_white_and_nothing_warns(tmp_path):
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 9, 9, 9])
    palette.save(tmp_path / "p.png", transparency=b"\xff\x00")
    Image.new("RGBA", (4, 4), (9, 9, 9, 0)).save(tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("p.png", "a.png"):
            assert Picture(tmp_path / name).open().getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bit_grey_keeps_its_shades(tmp_path):
    Image.fromarray(np.full((4, 4), 128 * 256, dtype=np.uint16)).save(tmp_path / "a.png")
    assert Picture(tmp_path / "a.png").open().getpixel((0, 0)) == (128, 128, 128)


GREY = np.linspace(0, 1, 64).reshape(8, 8)
DEEP = {
    "float from 0 to 1": ("tiff", GREY.astype(np.float32)),
    "float from 0 to 255": ("tiff", (255 * GREY).astype(np.float32)),
    "32 bits from 0 to 255": ("tiff", (255 * GREY).astype(np.int32)),
    "12 bits in 16": ("tiff", (4095 * GREY).astype(np.uint16)),
    "12 bits in a PNG of 16": ("png", (4095 * GREY).astype(np.uint16)),
    "10 bits in a PNG of 16": ("png", (1023 * GREY).astype(np.uint16)),
    "16 bits": ("png", (65535 * GREY).astype(np.uint16)),
    "millions": ("tiff", (5e6 * GREY).astype(np.int32)),
    "below zero": ("tiff", (GREY - 0.5).astype(np.float32)),
}


@pytest.mark.parametrize(("ending", "values"), DEEP.values(), ids=DEEP)
def test_grey_of_any_depth_keeps_its_shades(tmp_path, ending, values):
    Image.fromarray(values).save(tmp_path / f"a.{ending}")
    seen = np.asarray(Picture(tmp_path / f"a.{ending}").open())
    assert (seen == seen[..., :1]).all()
    assert np.abs(seen[..., 0] - 255 * GREY).max() <= 1


def test_a_dark_float_picture_stays_dark_and_what_is_no_number_is_black(tmp_path):
    values = np.full((2, 2), 0.5, np.float32)
    values[0] = np.nan, np.inf
    Image.fromarray(values).save(tmp_path / "a.tiff")
    assert np.asarray(Picture(tmp_path / "a.tiff").open())[..., 0].tolist() == [[0, 0], [128, 128]]


def test_large_pictures_are_decoded_one_at_a_time(monkeypatch):
    """Small ones go side by side."""
    busy, most = 0, 0
    changed = threading.Condition()
    convert = decoding._to_rgb

    def slowly(image):
        nonlocal busy, most
        with changed:
            busy, most = busy + 1, max(most, busy + 1)
            changed.notify_all()
            changed.wait_for(lambda: most > 1, 60 if together else 0.02)
            busy -= 1
        return convert(image)

    monkeypatch.setattr(decoding, "_to_rgb", slowly)
    monkeypatch.setattr(decoding, "LARGE_PIXELS", 100)
    for size, together in (((20, 20), False), ((5, 5), True)):
        most = 0
        list(prefetch(lambda image: upright(image, "a"), [Image.new("RGB", size) for _ in range(6)], 6, threads=4))
        assert (most > 1) == together


def test_pixels_are_squashed_not_cropped(tmp_path):
    image = Image.new("RGB", (40, 10), "black")
    image.paste("white", (0, 0, 20, 10))
    image.save(tmp_path / "a.png")
    pixels = Picture(tmp_path / "a.png").pixels(16)
    assert (pixels.shape, pixels.dtype) == ((3, 16, 16), np.uint8)
    assert pixels[:, :, :6].min() == 255
    assert pixels[:, :, 10:].max() == 0


def test_a_picture_of_the_right_size_keeps_its_pixels(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    assert (Picture(tmp_path / "a.png").pixels(16) == noise.transpose(2, 0, 1)).all()


def photograph(side: int) -> Image.Image:
    """Soft shapes under fine grain."""
    generator = np.random.default_rng(0)
    shapes = Image.fromarray(generator.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((side, side), 3)
    grain = generator.integers(-12, 13, (side, side, 3))
    return Image.fromarray((np.asarray(shapes) + grain).clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize(("side", "decoded", "size"), [(800, 400, 100), (400, 400, 100), (1600, 200, 50)])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_and_looks_the_same(monkeypatch, side, decoded, size):
    file = io.BytesIO()
    photograph(side).save(file, "JPEG", quality=90)
    whole = squash(decode(file.getvalue(), "a"), size)
    sizes = []
    monkeypatch.setattr(
        "fewtag.pictures.decode.squash", lambda image, size: sizes.append(image.size) or squash(image, size)
    )
    fast = squash_bytes(file.getvalue(), "a", size)
    assert sizes == [(decoded, decoded)]
    difference = np.abs(fast.astype(int) - whole.astype(int))
    assert difference.mean() < 0.5
    assert difference.max() <= 4


def test_other_formats_are_decoded_whole(tmp_path):
    image = photograph(900)
    image.save(tmp_path / "a.png")
    assert (Picture(tmp_path / "a.png").pixels(100) == squash(image, 100)).all()


def test_a_missing_file_is_named():
    with pytest.raises(InputError, match=r"nowhere\.jpg: there is no such file"):
        Picture(Path("nowhere.jpg")).read()


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "tiff"])
def test_a_truncated_picture_is_named(make, ending):
    path = make(f"broken.{ending}", size=(200, 200))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"broken\.\w+ cannot be decoded"):
        Picture(path).open()


@pytest.mark.parametrize("content", [b"", b"no image at all"])
def test_what_is_no_picture_is_named(tmp_path, content):
    (tmp_path / "text.jpg").write_bytes(content)
    with pytest.raises(InputError, match=r"text\.jpg cannot be decoded"):
        Picture(tmp_path / "text.jpg").open()


@pytest.mark.parametrize("width", [10_001, 30_000])
def test_more_than_a_hundred_megapixels_is_refused_without_a_warning(tmp_path, width):
    Image.new("1", (1, 1)).save(tmp_path / "wall.png")
    content = bytearray((tmp_path / "wall.png").read_bytes())
    struct.pack_into(">II", content, 16, width, 10_000)  # what its header says, with the header's checksum
    struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    (tmp_path / "wall.png").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match=r"wall\.png is too large"):
            Picture(tmp_path / "wall.png").open()
