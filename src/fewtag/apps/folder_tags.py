"""Every picture of a folder tagged: one table, a list of failures, and a journal in between that outlives a kill."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from fewtag import __version__
from fewtag.apps.banks import open_bank
from fewtag.apps.folder_places import FolderPlaces
from fewtag.apps.folders import find_pictures
from fewtag.apps.journal import Journal, Stamp
from fewtag.apps.progress import Bars
from fewtag.apps.tables import Tagged, check_labels, check_table, tagged, write_failures, write_table
from fewtag.errors import InputError
from fewtag.pictures.files import Picture
from fewtag.tagger.place_cache import place_space
from fewtag.tagger.tagger import Tagger

FEW_LABELS = 256
Found = Float[np.ndarray, "labels"] | InputError
"""A picture's probabilities, or why it could not be read."""


@dataclass(frozen=True)
class Summary:
    """How it went; `cached` are the pictures that the network did not see, `seconds` is without starting up."""

    pictures: int
    tagged: int
    failed: int
    cached: int
    seconds: float
    out: str


def failures_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.failures.csv")


def tag_folder(
    bank: Path,
    source: Path,
    out: Path,
    *,
    scores: bool,
    threshold: float | None,
    batch: int,
    bars: Bars,
    cache: Path | None = None,
    device: str = "cpu",
) -> Summary:
    """Goes on where a killed run of the same bank, folder and options stopped."""
    check_table(out)
    pictures = find_pictures(source)
    tagger = open_bank(bank).to(device)
    labels = tagger.classes_
    if not labels:
        raise InputError(f"the bank {bank} knows no label yet; teach it some with fewtag learn or fewtag define")
    check_labels(out, labels, scores=scores)
    thresholds = [tagger.thresholds_[label] if threshold is None else threshold for label in labels]
    with bank.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    about = {
        "fewtag": __version__,
        "bank": digest,
        "folder": str(source.resolve()),
        "scores": scores,
        "threshold": threshold,
        "device": tagger.device,
    }
    places = FolderPlaces(tagger, None if cache is None else place_space(tagger.model, cache))
    since = time.perf_counter()
    with Journal(out.with_name(f"{out.name}.part.jsonl"), about) as journal:
        for rows, stamps in _tag(tagger, places, _missing(pictures, journal, bars), batch):
            journal.add(
                [
                    Tagged(image, failure=str(found))
                    if isinstance(found, InputError)
                    else tagged(image, found.tolist(), labels, thresholds, scores=scores)
                    for image, found in rows
                ],
                stamps,
            )
            bars.advance(len(rows))
        failed = _write(out, [str(picture) for picture in pictures], journal, labels if scores else None)
        journal.remove()
    seconds = round(time.perf_counter() - since, 3)
    return Summary(len(pictures), len(pictures) - failed, failed, places.cached, seconds, str(out))


def _missing(pictures: Sequence[Picture], journal: Journal, bars: Bars) -> dict[Picture, Stamp]:
    """The pictures that are not finished yet, as their files are now."""
    stamps = {picture: _stamp(picture) for picture in pictures}
    missing = {picture: stamp for picture, stamp in stamps.items() if not journal.holds(str(picture), stamp)}
    before = len(pictures) - len(missing)
    bars.start(f"tagging ({before} done before)" if before else "tagging", len(missing))
    return missing


def _stamp(picture: Picture) -> Stamp:
    try:
        stat = picture.path.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _tag(
    tagger: Tagger, places: FolderPlaces, pictures: Mapping[Picture, Stamp], batch: int
) -> Iterator[tuple[list[tuple[str, Found]], list[Stamp]]]:
    """Batch by batch each picture's probabilities, or why it could not be read."""
    for tried, encoded in places.encode(list(pictures), batch):
        with _alone(len(tagger.classes_)):
            rows = iter(() if encoded is None else tagger.probabilities(encoded.float()))
        found = [(str(picture), next(rows) if failure is None else failure) for picture, failure in tried]
        yield found, [pictures[picture] for picture, _ in tried]


@contextmanager
def _alone(labels: int) -> Iterator[None]:
    """Scores few labels in one thread: several would wait for one another, and for readers, longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if labels <= FEW_LABELS else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _write(out: Path, images: Sequence[str], journal: Journal, labels: Sequence[str] | None) -> int:
    """The failures, then the table; how many failed."""
    failed = [image for image in images if journal.failed(image)]
    if failed:
        write_failures(failures_path(out), map(journal.read, failed))
    else:
        failures_path(out).unlink(missing_ok=True)
    write_table(out, (journal.read(image) for image in images if not journal.failed(image)), labels)
    return len(failed)
