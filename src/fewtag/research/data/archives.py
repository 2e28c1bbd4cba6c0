"""Find images by name or stem in folders and tar archives."""

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from fewtag.errors import InputError
from fewtag.pictures.files import Picture, is_image_name


class ImageIndex(dict[str, Picture]):
    """Pictures by path, name and stem; `find` refuses what is missing or means several pictures."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.place = place
        self.others: dict[str, list[Picture]] = {}

    def add(self, member: str, picture: Picture) -> None:
        """List a picture under everything a person may call it."""
        path = PurePosixPath(member)
        for key in dict.fromkeys((member, path.name, path.stem)):
            if key in self:
                self.others.setdefault(key, []).append(picture)
            else:
                self[key] = picture

    def find(self, name: str) -> Picture:
        """The one picture of this name; copies with the same bytes are one picture."""
        if name not in self:
            raise InputError(f"image {name!r} is not in {self.place}; check the name and the folder of the images")
        picture = self[name]
        for other in self.others.get(name, []):
            if other.size != picture.size or other.read() != picture.read():
                raise InputError(f"image {name!r} could be {picture} or {other}; add its ending, or rename one")
        return picture


def index_images(folder_or_tar: Path) -> ImageIndex:
    """Every image of a folder (its files and its *.tar archives; sub-folders are not descended) or of one archive."""
    index = ImageIndex(folder_or_tar)
    if folder_or_tar.is_file():
        archives = [folder_or_tar]
    elif folder_or_tar.is_dir():
        files = sorted(path for path in folder_or_tar.iterdir() if path.is_file())
        for path in files:
            if is_image_name(path.name):
                index.add(path.name, Picture(path, size=path.stat().st_size, name=str(path)))
        archives = [path for path in files if path.suffix == ".tar" and not path.name.startswith(".")]
    else:
        raise InputError(f"the images' folder {folder_or_tar} does not exist; give a folder, or a .tar archive")
    for archive in archives:
        for member, picture in _members(archive):
            index.add(member, picture)
    return index


def _members(archive: Path) -> Iterator[tuple[str, Picture]]:
    """The archive's images as stretches of its file, to be read later by a plain seek."""
    try:
        # "r:" refuses compressed archives, in which a seek would land nowhere
        with tarfile.open(archive, "r:") as file:
            for member in file:
                if member.isreg() and not member.issparse() and is_image_name(member.name):
                    name = f"{archive.name}:{member.name}"
                    yield member.name.removeprefix("./"), Picture(archive, member.offset_data, member.size, name)
    except (tarfile.TarError, OSError) as error:
        raise InputError(f"cannot read {archive} as an uncompressed tar archive ({error}); pack it again") from error
