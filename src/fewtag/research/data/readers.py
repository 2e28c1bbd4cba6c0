"""Readers of data sets: CSV and TSV tables, one folder per label, COCO, VOC; pictures in folders and tar archives."""

import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from fewtag.cache import content_digest
from fewtag.errors import InputError, nearest
from fewtag.files import read_json
from fewtag.pictures.files import Picture, archived, is_image_name, own_entries
from fewtag.pictures.tables import ABSENT, NOT, read_cells, split_labels
from fewtag.research.data.images import LabelledImages, from_shown


class ImageIndex:
    """Pictures by path, name and stem; `find` refuses names that are missing or ambiguous."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.pictures: dict[str, list[Picture]] = {}

    def add(self, member: str, picture: Picture) -> None:
        """Adds a picture under all its names: path, name and stem."""
        path = PurePosixPath(member)
        for key in dict.fromkeys((member, path.name, path.stem)):
            self.pictures.setdefault(key, []).append(picture)

    def find(self, name: str) -> Picture:
        """The one picture of this name; copies with the same bytes count as one."""
        if name not in self.pictures:
            raise InputError(f"image {name!r} is not in {self.place}; check the name and the folder of the images")
        picture, *others = self.pictures[name]
        for other in others:
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
        for member, offset, size in archived(archive):
            if is_image_name(member):
                index.add(member, Picture(archive, offset, size, f"{archive.name}:{member}"))
    return index


def read_table(
    path: Path, images: Path | None = None, where: Mapping[str, Sequence[str]] | None = None
) -> LabelledImages:
    """Reads images and labels from a table (.csv, .tsv, also .gz); `where` selects rows by the values of columns.

    An image is a path relative to `images` (or else to the table's folder), or a bare id, which is looked up there
    among the files and the *.tar archives. A path that does not exist is refused by `check()` or when read, so that
    callers may skip it.
    """
    if not path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv")):
        raise InputError(f"the table {path} ends neither in .csv nor in .tsv (or these with .gz); rename it")
    place = path.parent if images is None else images
    index: ImageIndex | None = None
    pictures = []
    for name, (line, labels) in _labels(path, _filtered(path, where or {})).items():
        picture = Picture(place / name, name=str(place / name))
        if not is_image_name(name) or not picture.path.is_file():
            index = index_images(place) if index is None else index
            if name in index.pictures:
                picture = index.find(name)
            elif not is_image_name(name):
                raise InputError(f"{path} line {line}: image {name!r} is not in {place}; check it, or add its ending")
        pictures.append((name, picture, labels))
    return from_shown(pictures, sorted(set().union(*(labels for _, _, labels in pictures))))


def _labels(path: Path, rows: Sequence[tuple[int, dict[str, str]]]) -> dict[str, tuple[int, set[str]]]:
    """The first line and the labels of each image; its lines are merged, and must not contradict each other."""
    said: dict[str, dict[str, int]] = {}
    for line, row in rows:
        if not row["image"].strip():
            raise InputError(f"{path} line {line} names no image; fill in the column `image` or remove the line")
        labels = split_labels(path, line, row["labels"])
        if not labels:
            raise InputError(f"{path} line {line} has an empty label in {row['labels']!r}; name it, or remove the line")
        labels += [NOT + label for label in split_labels(path, line, row.get(ABSENT, ""))]
        lines = said.setdefault(PurePosixPath(row["image"].strip()).as_posix(), {})
        lines.update(dict.fromkeys(labels, line) | lines)
    found = {}
    for name, lines in said.items():
        shown = {label for label in lines if not label.startswith(NOT)}
        if not shown:
            raise InputError(f"{path} says only what image {name!r} does not show; name a label, or remove the line")
        for label in sorted(shown):
            if NOT + label in lines:
                yes, no = lines[label], lines[NOT + label]
                raise InputError(
                    f"{path} says in line {yes} that {name!r} shows {label!r} and in line {no} that it does not; choose"
                )
        found[name] = (min(lines.values()), shown)
    return found


def _filtered(path: Path, where: Mapping[str, Sequence[str]]) -> list[tuple[int, dict[str, str]]]:
    everything = read_cells(path)
    for column, values in where.items():
        if column not in everything[0][1]:
            raise InputError(f"the table {path} has no column {column!r}; {nearest(column, everything[0][1])}")
        present = {row[column] for _, row in everything}
        for value in values:
            if value not in present:
                raise InputError(f"no row of {path} has {value!r} in column {column!r}; {nearest(value, present)}")
    return [(line, row) for line, row in everything if all(row[column] in where[column] for column in where)]


def read_folders(path: Path) -> LabelledImages:
    """Reads a folder per label: image "dog/1.jpg" shows "dog"; sub-folders, hidden files and other endings are skipped.

    Copies in several folders are one image that shows all their labels, since otherwise it could be support and query
    of one episode.
    """
    if not path.is_dir():
        raise InputError(f"{path} is no folder; give the folder that holds one folder for each label")
    entries = own_entries(path)
    loose = [entry.name for entry in entries if entry.is_file() and is_image_name(entry.name)]
    if loose:
        raise InputError(
            f"{len(loose)} images lie in {path} itself, the first is {loose[0]!r}; move them into a label's folder"
        )
    labels = [entry.name for entry in entries if entry.is_dir()]
    if not labels:
        raise InputError(f"{path} holds no label's folder; make one folder for each label and put its images there")
    files: list[Path] = []
    for label in labels:
        images = sorted(file for file in (path / label).iterdir() if file.is_file() and is_image_name(file.name))
        if not images:
            raise InputError(f"label {label!r} has no image: {path / label} holds none; add one or remove the folder")
        files += images
    sizes = Counter(file.stat().st_size for file in files)
    pictures: dict[object, tuple[str, Picture, set[str]]] = {}
    for file in files:
        picture, label = Picture(file, name=str(file)), file.parent.name
        content = content_digest(picture.read()) if sizes[file.stat().st_size] > 1 else file
        pictures.setdefault(content, (f"{label}/{file.name}", picture, set()))[2].add(label)
    return from_shown(list(pictures.values()), labels)


def read_coco(annotations: Sequence[Path], images: Sequence[Path]) -> LabelledImages:
    """Reads image-level labels from one or several annotation files (2014 has two); ids are the images' file names.

    Crowd regions do not count; an image without another label is left out. Labels are sorted by their ids. An image
    whose file is missing is refused by `check()` or when read, so that callers may skip it.
    """
    if not images:
        raise InputError("the annotations name pictures, and no folder of pictures was given; give one or several")
    indices = [index_images(place) for place in images]
    names: dict[int, str] = {}
    pictures: list[tuple[str, Picture, set[str]]] = []
    for path in annotations:
        table, labels = _coco_labels(path)
        if names and table != names:
            raise InputError(f"{path} and {annotations[0]} list different categories; read them as two data sets")
        names = table
        pictures += [(file_name, _find(file_name, indices), shown) for file_name, shown in labels.items()]
    return from_shown(pictures, [names[number] for number in sorted(names)])


def _coco_labels(path: Path) -> tuple[dict[int, str], dict[str, set[str]]]:
    """The categories by number, and the labels that each image shows, by file name, in the file's order."""
    content, wanted = read_json(path, "file of annotations"), ("images", "annotations", "categories")
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in wanted):
        raise InputError(f"{path} lacks one of the lists {', '.join(wanted)}; give COCO's instances_*.json")
    labels: dict[int, set[str]] = defaultdict(set)
    try:
        names = {int(row["id"]): str(row["name"]) for row in content["categories"]}
        files = {row["id"]: str(row["file_name"]) for row in content["images"]}
        for row in content["annotations"]:
            if (category := row["category_id"]) not in names:
                raise InputError(
                    f"{path}: an annotation has category {category!r}, which `categories` lacks; add it there"
                )
            if not row.get("iscrowd"):
                labels[row["image_id"]].add(names[category])
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} holds an entry without {error}; give COCO's instances_*.json") from error
    if unknown := labels.keys() - files.keys():
        raise InputError(f"{path}: an annotation is for image {min(unknown)!r}, which `images` lacks; add it there")
    for listed, key in ((names, "categories"), (files, "images")):
        if len(set(listed.values())) < len(content[key]):
            raise InputError(f"{path} lists an id or a name twice in `{key}`; give each its own")
    return names, {name: labels[number] for number, name in files.items() if number in labels}


def _find(file_name: str, indices: Sequence[ImageIndex]) -> Picture:
    """The picture in the first place that has it, or one that does not exist and says where it was looked for."""
    for index in indices:
        if file_name in index.pictures:
            return index.find(file_name)
        nested = index.place / file_name
        if nested.is_file():  # a file name may include folders
            return Picture(nested, name=str(nested))
    place = indices[0].place
    nowhere = Path(f"{place}:{file_name}") if place.is_file() else place / file_name
    return Picture(nowhere, name=f"{file_name} (looked in {', '.join(str(index.place) for index in indices)})")


def read_voc(
    devkits: Sequence[Path], sets: Sequence[str] = ("trainval",), keep_difficult: bool = False
) -> LabelledImages:
    """Reads image-level labels of some years; ids are the images' names, prefixed by their year if two share one.

    A year without one of the sets (2012 has no public test) skips it. Objects marked difficult do not count unless
    kept; an image without another object is left out. An image whose file is missing is refused by `check()` or when
    read, so that callers may skip it.
    """
    years = [year for devkit in devkits for year in _years(devkit)]
    listed: dict[Path, dict[str, None]] = {year: {} for year in years}
    for name in sets:
        files = {year: file for year in years if (file := year / "ImageSets" / "Main" / f"{name}.txt").is_file()}
        if not files:
            searched = ", ".join(str(year) for year in years)
            raise InputError(f"no year has an image set {name!r}; looked for ImageSets/Main/{name}.txt in {searched}")
        for year, file in files.items():  # each image once, since "train" is a part of "trainval"
            lines = file.read_text(encoding="utf-8").splitlines()
            listed[year] |= dict.fromkeys(line.split()[0] for line in lines if line.strip())
    times = Counter(image for images in listed.values() for image in images)
    pictures = []
    for year, images in listed.items():
        for image in images:
            shown = _voc_labels(year / "Annotations" / f"{image}.xml", keep_difficult)
            if shown:
                path = year / "JPEGImages" / f"{image}.jpg"
                name = image if times[image] == 1 else f"{year.name}/{image}"
                pictures.append((name, Picture(path, name=str(path)), shown))
    return from_shown(pictures, sorted(set().union(*(shown for _, _, shown in pictures))))


def _years(devkit: Path) -> list[Path]:
    """The devkit's year folders, or the folder itself if it is one."""
    candidates = [devkit, *sorted(devkit.glob("VOC*"))]
    years = [folder for folder in candidates if (folder / "ImageSets" / "Main").is_dir()]
    if not years:
        raise InputError(f"{devkit} is no VOCdevkit: no ImageSets/Main in it or in its VOC* folders; check the path")
    return years


def _voc_labels(path: Path, keep_difficult: bool) -> set[str]:
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the annotation {path}: {error.strerror}; check the devkit") from error
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is not valid XML ({error}); unpack the devkit again") from error
    shown = set()
    for thing in root.findall("object"):
        name = (thing.findtext("name") or "").strip()
        if not name:
            raise InputError(f"{path} holds an object without a name; name it or remove it")
        if keep_difficult or (thing.findtext("difficult") or "0").strip() != "1":
            shown.add(name)
    return shown
