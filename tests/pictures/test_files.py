"""Pictures found on disk: in order, none left out in silence, and nothing that hangs."""

import os
from pathlib import Path

import pytest

from fewtag.errors import InputError
from fewtag.pictures import files
from fewtag.pictures.files import Picture, walk


def names(folder: Path) -> list[str]:
    return [found.name for found in walk(folder)]


def problems(folder: Path) -> dict[str, str]:
    return {found.name: found.problem for found in walk(folder) if found.problem}


def test_pictures_are_found_in_sub_folders_and_sorted_by_name(make, tmp_path: Path) -> None:
    for name in ("b.jpg", "a/z.PNG", "a/b/c.webp", "a.gif", "Ä.jpg", "B.tif", "10.jpg", "9.jpg"):
        make(name)
    (tmp_path / "notes.txt").write_text("no picture")
    assert names(tmp_path) == sorted(["10.jpg", "9.jpg", "B.tif", "a.gif", "a/b/c.webp", "a/z.PNG", "b.jpg", "Ä.jpg"])
    assert all(found.path == tmp_path / found.name for found in walk(tmp_path))
    assert not problems(tmp_path)


def test_hidden_files_and_what_devices_put_beside_are_left_out(make, tmp_path: Path) -> None:
    for name in (".hidden.jpg", "._a.jpg", ".trash/a.jpg", "@eaDir/a.jpg", "#recycle/a.jpg", "sub/__MACOSX/a.jpg"):
        make(name)
    make("sub/a.jpg")
    assert names(tmp_path) == ["sub/a.jpg"]


UNREAD = "a.CR2", "b.nef", "c.dng", "d.jp2", "e.psd", "f.jxl", "g.eps", "h.GPR", "i.mrw", "j.ppm"


@pytest.mark.parametrize("name", UNREAD)
def test_pictures_that_are_not_read_are_told_of(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    ending = Path(name).suffix.lower()
    assert problems(tmp_path) == {name: f"image {name} is of a kind that is not read ({ending}); convert it to JPEG"}


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "bmp", "tiff", "avif"])
def test_a_file_without_ending_is_known_by_its_first_bytes(make, tmp_path: Path, ending: str) -> None:
    make(f"a.{ending}").rename(tmp_path / "photo")
    (tmp_path / "Makefile").write_text("all:\n")
    (tmp_path / "empty").touch()
    assert names(tmp_path) == ["photo"]
    assert Picture(tmp_path / "photo").open().size == (8, 6)


def test_heic_counts_by_its_name_and_by_its_first_bytes(tmp_path: Path) -> None:
    content = (Path(__file__).parents[1] / "data" / "upright.heic").read_bytes()
    for name in ("IMG_1.HEIC", "IMG_2.heif", "IMG_3"):
        (tmp_path / name).write_bytes(content)
    assert names(tmp_path) == ["IMG_1.HEIC", "IMG_2.heif", "IMG_3"]


def test_a_link_to_itself_is_told_of_and_stops_nothing(make, tmp_path: Path) -> None:
    make("a.jpg")
    (tmp_path / "self.jpg").symlink_to("self.jpg")
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "gone.jpg").symlink_to("nowhere.jpg")
    assert names(tmp_path) == ["a.jpg", "gone.jpg", "self.jpg"]
    for name in ("self.jpg", "gone.jpg"):
        with pytest.raises(InputError, match=f"cannot read image .*{name}"):
            Picture(tmp_path / name).read()


def test_folders_that_contain_themselves_end(make, tmp_path: Path) -> None:
    make("sub/a.jpg")
    (tmp_path / "sub" / "round").symlink_to(tmp_path)
    (tmp_path / "other").symlink_to(tmp_path / "sub")
    assert names(tmp_path) == ["other/a.jpg", "sub/a.jpg"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_do_not_hang(make, tmp_path: Path) -> None:
    make("a.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.jpg").symlink_to("pipe.jpg")
    assert names(tmp_path) == ["a.jpg", "link.jpg", "pipe.jpg"]
    assert "no regular file" in problems(tmp_path)["pipe.jpg"]
    for name in ("pipe.jpg", "link.jpg"):
        with pytest.raises(InputError, match=f"cannot read image .*{name}: it is no regular file"):
            Picture(tmp_path / name).read()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_endless_devices_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="no regular file"):
        Picture(tmp_path / "zero.jpg").read()


def test_a_folder_in_a_pictures_place_is_called_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is a folder; give its pictures"):
        Picture(tmp_path).read()


def test_a_huge_file_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 2_000_000)
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(InputError, match=r"huge\.jpg is too large: more than 2 MB; shrink it"):
        Picture(tmp_path / "huge.jpg").read()
    (tmp_path / "fits.jpg").write_bytes(b"x" * 2_000_000)
    assert len(Picture(tmp_path / "fits.jpg").read()) == 2_000_000


def deny(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As the system does to whoever is not root."""
    scan = os.scandir

    def scandir(path: Path) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_an_unreadable_sub_folder_is_one_problem_and_the_rest_is_found(
    make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("a.jpg")
    make("secret/b.jpg")
    deny(monkeypatch, tmp_path / "secret")
    assert names(tmp_path) == ["a.jpg", "secret/"]
    assert problems(tmp_path) == {"secret/": "cannot read the folder secret/: Permission denied; check its permissions"}


def test_an_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"cannot read the folder .*: Permission denied"):
        walk(tmp_path)
    with pytest.raises(InputError, match="cannot read the folder"):
        walk(tmp_path / "nowhere")


def test_a_stretch_of_an_archive_is_read_alone(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"0123456789")
    assert Picture(tmp_path / "a.tar", 2, 3, "a.jpg").read() == b"234"
    with pytest.raises(InputError, match=r"image a\.jpg ends after 2 of 5 bytes"):
        Picture(tmp_path / "a.tar", 8, 5, "a.jpg").read()
