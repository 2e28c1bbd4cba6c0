"""Makes packs of COCO pictures that the given packs lack: `more` for base labels, `crowded`, `every` for all labels.

    python scripts/more_pictures.py PICTURES --packs DIR/coco --labels DIR/coco/all-labels.tsv.gz --out OTHER/coco

PICTURES is a folder of IMAGE_ID.jpg, or a git directory that holds one as train2017/. `more` has every picture with
base labels alone that the pack `train` lacks: together they are the paper's base pictures, but for those that PICTURES
lacks. `crowded` has pictures with a validation label beside base labels, none with a novel one: the validation labels'
counterpart of `mixed`. `every` has pictures of any labels, each taken for the label that is shown least until then.
Pictures are squashed to 224 × 224 as in the packs and kept as WebP. labels.tsv in the folder written has the rows of
the packs given, too: with their tars beside it the folder takes the place of theirs.
"""

import argparse
import gzip
import io
import random
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fewtag.files import replacing, write_atomically
from fewtag.research.data.splits import Split

SIZE, QUALITY = 224, 70
LARGEST = 28_500_000
"""Bytes of a tar."""
IN_GIT = "train2017"
AT_ONCE = 256

Read = Callable[[str], bytes]


@dataclass(frozen=True)
class Line:
    """A row of a table of labels."""

    image: str
    split: str
    labels: tuple[str, ...]


def read_all(path: Path) -> list[Line]:
    """image_id, split2014, labels: the table of all labelled pictures."""
    with gzip.open(path, "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [Line(image, split, tuple(labels.split(","))) for image, split, labels in rows]


def base_alone(lines: Iterable[Line], base: Collection[str], known: Collection[str]) -> list[Line]:
    """The pictures that show base labels and nothing else, without those that are known."""
    return [line for line in lines if line.image not in known and set(line.labels) <= set(base)]


def crowded(lines: Iterable[Line], split: Split) -> list[Line]:
    """The pictures that show a validation label and a base label, and no novel one; of labels the validation ones."""
    base, validation = (set(split.phases[phase].labels) for phase in ("train", "val"))
    found = []
    for line in lines:
        shown = set(line.labels)
        if shown & base and shown & validation and shown <= base | validation:
            found.append(Line(line.image, line.split, tuple(label for label in line.labels if label in validation)))
    return found


def balanced(lines: Iterable[Line], counts: Counter[str], wanted: int, *, seed: int = 0) -> list[Line]:
    """So many pictures, each the next (in random order) of the label that is shown least, from `counts` on."""
    shuffled = sorted(lines, key=lambda line: line.image)
    random.Random(seed).shuffle(shuffled)
    waiting: dict[str, list[Line]] = {}
    for line in shuffled:
        for label in line.labels:
            waiting.setdefault(label, []).append(line)
    counts, taken = Counter(counts), dict[str, Line]()
    while waiting and len(taken) < wanted:
        label = min(waiting, key=lambda label: (counts[label], label))
        line = waiting[label].pop()
        if not waiting[label]:
            del waiting[label]
        if line.image not in taken:
            taken[line.image] = line
            counts.update(line.labels)
    return sorted(taken.values(), key=lambda line: line.image)


@contextmanager
def opened(pictures: Path) -> Iterator[tuple[set[str], Read]]:
    """The ids of the pictures in a folder or a git directory, and a function that reads one."""
    if not (pictures / "HEAD").is_file():
        yield {path.stem for path in pictures.glob("*.jpg")}, lambda image: (pictures / f"{image}.jpg").read_bytes()
        return
    git = ["git", f"--git-dir={pictures}"]
    listed = subprocess.run([*git, "ls-tree", f"HEAD:{IN_GIT}"], check=True, capture_output=True, text=True).stdout
    # "mode type object<tab>name"; by their names, git would search the whole tree for each
    objects = {Path(name).stem: facts.split()[2] for facts, name in (row.split("\t") for row in listed.splitlines())}
    with subprocess.Popen([*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        asked, answered = process.stdin, process.stdout
        assert asked is not None
        assert answered is not None

        def read(image: str) -> bytes:
            asked.write(f"{objects[image]}\n".encode())
            asked.flush()
            size = int(answered.readline().split()[2])
            return answered.read(size + 1)[:-1]

        yield set(objects), read
        asked.close()


def squash(encoded: bytes) -> bytes:
    """A picture at the packs' size, whatever its shape, as WebP."""
    with Image.open(io.BytesIO(encoded)) as picture:
        small = picture.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=QUALITY)
    return file.getvalue()


def write_tars(folder: Path, pack: str, lines: list[Line], read: Read) -> None:
    """PACK-0.tar, PACK-1.tar, …, each below the largest size."""
    number = size = 0
    with ThreadPoolExecutor() as workers, ExitStack() as stack:
        archive: tarfile.TarFile | None = None
        for first in range(0, len(lines), AT_ONCE):
            part = lines[first : first + AT_ONCE]
            for line, picture in zip(part, workers.map(squash, [read(line.image) for line in part]), strict=True):
                room = 512 * (1 + -(-len(picture) // 512))
                if archive is None or size + room > LARGEST:
                    stack.close()
                    path = stack.enter_context(replacing(folder / f"{pack}-{number}.tar"))
                    archive, number, size = stack.enter_context(tarfile.open(path, "w")), number + 1, 0
                member = tarfile.TarInfo(f"{line.image}.webp")
                member.size = len(picture)
                archive.addfile(member, io.BytesIO(picture))
                size += room
            print(f"{pack}: {first + len(part)} of {len(lines)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path, help="a folder of IMAGE_ID.jpg, or a git directory")
    parser.add_argument("--packs", type=Path, required=True, help="the folder whose labels.tsv names the packs")
    parser.add_argument("--labels", type=Path, required=True, help="the labels of all pictures, all-labels.tsv.gz")
    parser.add_argument("--crowded", type=int, default=2_600, help="crowded pictures of validation labels (0: none)")
    parser.add_argument("--every", type=int, default=30_000, help="pictures of all labels (0: none)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    table = (arguments.packs / "labels.tsv").read_text()
    packed: dict[str, set[str]] = {}
    for row in table.splitlines()[1:]:
        packed.setdefault(row.split("\t")[0], set()).add(row.split("\t")[1])
    with opened(arguments.pictures) as (there, read):
        lines, split = read_all(arguments.labels), Split.load("coco")
        wanted = base_alone(lines, split.phases["train"].labels, packed["train"])
        packs = {"more": [line for line in wanted if line.image in there]}
        print(f"{len(wanted)} base pictures are not in the packs, {len(packs['more'])} of them are here")
        in_packs = set().union(*packed.values())
        known = in_packs.union(line.image for line in packs["more"])
        counts = Counter(label for line in lines if line.image in known for label in line.labels)
        rest = [line for line in lines if line.image in there and line.image not in known]
        by_image = {line.image: line for line in rest}
        # each for the validation label that is shown least, with all that it shows in the table
        packs["crowded"] = [
            by_image[line.image] for line in balanced(crowded(rest, split), Counter(), arguments.crowded)
        ]
        taken = {line.image for line in packs["crowded"]}
        rest = [line for line in rest if line.image not in taken]
        packs["every"] = balanced(rest, counts, arguments.every)
        rows = [
            f"{pack}\t{line.image}\t{line.split}\t{','.join(line.labels)}\n" for pack in packs for line in packs[pack]
        ]
        write_atomically(arguments.out / "labels.tsv", (table + "".join(rows)).encode())
        for pack, chosen in packs.items():
            # one that another pack holds has a row of this one, and stays where it is
            write_tars(arguments.out, pack, [line for line in chosen if line.image not in in_packs], read)


if __name__ == "__main__":
    main()
