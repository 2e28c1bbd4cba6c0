import io
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from fewtag.errors import InputError
from fewtag.research.data.readers import index_images


def pack(path, members):
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_members_of_an_archive_are_found_by_name_and_stem(tmp_path, make):
    data = make("red.webp").read_bytes()
    path = pack(tmp_path / "some.tar", {"notes.txt": b"x", "in/a.webp": data, "b.webp": data})
    index = index_images(path)
    assert index.find("a") == index.find("a.webp") == index.find("in/a.webp")
    assert index.find("b").read() == data
    assert str(index.find("b")) == "some.tar:b.webp"
    assert "notes" not in index.pictures


def test_a_folder_offers_its_files_and_its_archives(tmp_path, make):
    pack(tmp_path / "x.tar", {"packed.jpg": make("loose.jpg").read_bytes()})
    index = index_images(tmp_path)
    assert index.find("packed").open().size == index.find("loose").open().size == (8, 6)


def test_threads_read_an_archive_together(tmp_path, make):
    members = {f"{colour}.png": make(f"{colour}.png", colour).read_bytes() for colour in ("red", "lime", "blue")}
    index = index_images(pack(tmp_path / "x.tar", members))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda name: index.find(name).read() == members[name], list(members) * 50))


def test_a_stem_of_two_pictures_is_refused_when_asked_for(tmp_path, make):
    make("a.jpg", "red"), make("a.png", "blue")
    index = index_images(tmp_path)
    assert index.find("a.png").open().getpixel((0, 0)) == (0, 0, 255)
    with pytest.raises(InputError, match=r"'a' could be .*a\.jpg or .*a\.png"):
        index.find("a")


def test_copies_with_the_same_bytes_are_one_picture(tmp_path, make):
    data = make("a.jpg").read_bytes()
    pack(tmp_path / "copy.tar", {"a.jpg": data})
    assert index_images(tmp_path).find("a").read() == data


def test_what_is_not_there_is_named(tmp_path, make):
    with pytest.raises(InputError, match="'b' is not in"):
        index_images(make("a.jpg").parent).find("b")
    with pytest.raises(InputError, match="nowhere does not exist"):
        index_images(tmp_path / "nowhere")


def test_a_compressed_archive_is_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w:gz"):
        pass
    with pytest.raises(InputError, match=r"x\.tar as an uncompressed tar"):
        index_images(tmp_path)


def test_a_shortened_archive_is_named(tmp_path, make):
    path = pack(tmp_path / "x.tar", {"a.jpg": make("a.jpg").read_bytes()})
    picture = index_images(path).find("a")
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(InputError, match=r"x\.tar:a\.jpg ends after"):
        picture.read()
