"""Banks on the command line: opened, made when absent, taught from files."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from fewtag.apps.folders import decode_ahead
from fewtag.apps.tables import SEPARATOR
from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.research.data.images import LabelledImages
from fewtag.research.data.readers import read_folders, read_table
from fewtag.tagger.inputs import digest, label_name
from fewtag.tagger.tagger import Tagger

_BATCH = 16


def open_bank(path: Path, model: str | None = None, words: str | None = None) -> Tagger:
    """Refuses a bank that is not there, and says how one is made."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a bank; name the file that fewtag learn wrote")
    if not path.exists():
        raise InputError(f"there is no bank {path}; make one with: {_command('learn', path)} EXAMPLES")
    return Tagger.load(path, model=model, words=words)


def open_or_create(path: Path, model: str | None, words: str | None) -> Tagger:
    """An existing bank keeps its model and words: others are refused, rather than mixed with them."""
    if path.exists():
        return open_bank(path, model, words)
    return Tagger(model or "default", words=words)


def clean_label(label: str) -> str:
    """A label's name as it is kept; refuses one that a cell of several labels could not hold."""
    name = label_name(label)
    if SEPARATOR in name:
        raise InputError(f'label {name!r} contains ";", which separates labels in tables; name it otherwise')
    return name


def read_examples(path: Path) -> LabelledImages:
    """A table, or a folder per label."""
    if not path.exists():
        raise InputError(
            f"there are no examples {path}; give a CSV with the columns image,labels or a folder per label"
        )
    return read_folders(path) if path.is_dir() else read_table(path)


def check_words(tagger: Tagger, labels: Sequence[str], bank: Path, options: Sequence[str]) -> None:
    """Refuses a name that says nothing before any picture is read, with a command that mends it."""
    for label in sorted({clean_label(label) for label in labels} - tagger.definitions_.keys()):
        try:
            tagger.model.words.vector(label)
        except InputError as error:
            mended = _command("define", bank, label, *options, "--like", "lens, eye")
            raise InputError(f"{error}; for example run `{mended}`, then learn again") from error


def teach(tagger: Tagger, examples: LabelledImages, *, skip_bad: bool, advance: Callable[[int], None]) -> list[str]:
    """Adds every example, or with `skip_bad` the readable ones; the reasons why the others are not.

    A picture that lies in several labels' folders shows all of them.
    """
    labels = iter([{clean_label(label) for label in examples.shown(row)} for row in range(len(examples))])
    shown: dict[str, set[str]] = defaultdict(set)
    skipped: list[str] = []
    for batch in decode_ahead(examples.pictures, _open, _BATCH):
        good = []
        # the batches come in the order of the examples
        for (_, found), names in zip(batch, labels, strict=False):
            if not isinstance(found, InputError):
                image, known_by = found
                shown[known_by] |= names
                good.append((image, shown[known_by]))
            elif skip_bad:
                skipped.append(str(found))
            else:
                raise InputError(f"{found} (--skip-bad leaves such pictures out)")
        if good:
            tagger.partial_fit([image for image, _ in good], [sorted(names) for _, names in good])
        advance(len(batch))
    if len(skipped) == len(examples):
        raise InputError(f"none of the {len(examples)} pictures can be read; the first: {skipped[0]}")
    return skipped


def _open(picture: Picture) -> tuple[Image.Image, str]:
    image = picture.open()
    return image, digest(image)


def read_vector(path: Path) -> np.ndarray:
    """A label's vector: .npy, or text of numbers between blanks or commas."""
    try:
        if path.suffix.lower() == ".npy":
            vector = np.load(path, allow_pickle=False)
        else:
            vector = np.array([float(number) for number in path.read_text(encoding="utf-8").replace(",", " ").split()])
    except OSError as error:
        raise InputError(f"cannot read the vector {path}: {error.strerror}; check the path") from error
    except (ValueError, EOFError) as error:
        raise InputError(
            f"{path} holds no vector of numbers ({error}); give .npy, or numbers in a text file"
        ) from error
    return vector.squeeze()


def _command(*words: object) -> str:
    return shlex.join(["fewtag", *map(str, words)])
