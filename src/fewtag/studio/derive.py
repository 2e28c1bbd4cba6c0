"""The derived bank: a project's answers as a bank that every other command can use."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import ClassVar

import numpy as np

from fewtag.errors import InputError, UnknownWordError
from fewtag.files import digest, locked
from fewtag.pictures.decode import decode, pixel_digest, squash, thumbnail
from fewtag.studio.library import Library
from fewtag.studio.log import Fold, Label, Said
from fewtag.studio.project import BANK, ExampleRow, Project
from fewtag.studio.values import PAGE, UNTAUGHT
from fewtag.tagger.bank import Annotation, Bank, Definition, Example, FitSet, Quantised, by_name, define
from fewtag.tagger.bank_file import read_header, write_bank
from fewtag.tagger.model import Model
from fewtag.tagger.stream import Scorer


def word_of(name: str) -> str:
    """The word that is looked up for a path: its last part."""
    return name.rpartition("/")[2]


def by_word(word: str, model: Model) -> Definition | None:
    """The definition of a word; None for an unknown one."""
    try:
        return by_name(word, model, explicit=True)
    except InputError:
        return None


def provisional_key(picture: str) -> str:
    """A stand-in for the digest of a picture's pixels until they have been read: its file's digest, twice."""
    return picture * 2


@dataclass(frozen=True, eq=False)
class AnswersBank(Bank):
    """A bank of answers to questions about one label each: a label that a picture was not asked about is unknown.

    In other banks it would count as a weak 'no', since people who show a picture name what matters in it; here every
    answer about one label would take tags away from all the others.
    """

    asked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For each label, the examples that Review asked about: the studio chose them, by score, not a person."""
    leave_out: ClassVar[bool] = True

    def fit_set(self, label: str) -> FitSet:
        return super().fit_set(label)._replace(unnamed=())


class Deriver:
    """Derives banks from folds; what did not change is taken over from the last one, to the bit.

    `read` returns the encoded bytes of a picture by its digest.
    """

    def __init__(self, project: Project, library: Library, model: Model, read: Callable[[str], bytes]) -> None:
        self.project, self.library, self.model, self._read = project, library, model, read
        self.path = project.folder / BANK
        self._keys: dict[str, str] = {}
        self._plain: dict[str, Example] = {}
        for row in project.examples(model.space_key):
            self._know(row)
        self._definitions: dict[tuple[object, ...], Definition] = {}
        self._last: Bank = AnswersBank()
        self._last_of: Fold | None = None
        self._lock = threading.Lock()
        self._written = project.meta("bank")

    def _know(self, row: ExampleRow) -> None:
        codes = np.frombuffer(row.codes, np.int8).reshape(self.model.places, self.model.space.size)
        self._keys[row.picture] = row.pixels
        self._plain[row.picture] = Example(
            Annotation(), Quantised(codes, np.frombuffer(row.scales, np.float32)), row.name
        )

    def bank(self, fold: Fold) -> Bank:
        """The bank with every label, and each picture with a yes or no that is learnt from; derived once per fold."""
        with self._lock:
            if self._last_of is not fold:
                self._last, self._last_of = self._derived(fold), fold
            return self._last

    def _derived(self, fold: Fold) -> Bank:
        definitions = {label.name: self._definition(label) for label in fold.labels.values()}
        said: dict[str, Annotation] = {}
        chosen: dict[str, str] = {}
        keys: dict[str, str] = {}
        for picture, told in sorted(told_in(fold).items()):
            if (key := self.key(picture)) is None:
                continue
            keys[picture] = key
            before = said.get(key, Annotation())
            shown = before.labels | told.labels
            said[key] = Annotation(shown, (before.absent | told.absent) - shown)
            chosen.setdefault(key, picture)
        plain = {key: self._plain[chosen[key]] for key in sorted(said)}
        examples = {key: Example(said[key], each.features, each.name) for key, each in plain.items()}
        known = {label: each for label, each in list(self._last.fits.items()) if label in definitions}
        asked = {
            label.name: frozenset(
                keys[picture]
                for picture, each in fold.latest[label.id].items()
                if each.source == PAGE and picture in keys
            )
            for label in fold.labels.values()
        }
        return AnswersBank(dict(sorted(definitions.items())), examples, known, asked=asked)

    def _definition(self, label: Label) -> Definition:
        facts = word_of(label.name), label.like, label.words
        if facts not in self._definitions:
            try:
                meant = define(facts[0], self.model, {}, like=label.like, vector=None, words=label.words)
            except UnknownWordError:  # a word that another model's table had
                meant = Definition("none", explicit=True)
            self._definitions[facts] = meant
        return replace(self._definitions[facts], threshold=label.threshold, prior=label.prior)

    def key(self, picture: str) -> str | None:
        """The bank's key of an answered picture; None if its features are not available now."""
        if picture not in self._plain:
            row = self.library.row_of.get(picture)
            places = None if row is None else self.library.features.places(row)
            if places is None:
                return None
            self._plain[picture] = Example.of(Annotation(), places, self._file_name(picture))
        return self._key(picture)

    def picture_of(self, fold: Fold) -> dict[str, str]:
        """The answered pictures, by the bank's keys."""
        latest = [fold.latest[label] for label in fold.labels]
        pictures = {picture for each in latest for picture, said in each.items() if not said.former}
        return {self._key(picture): picture for picture in sorted(pictures, reverse=True)}

    def _key(self, picture: str) -> str:
        return self._keys.get(picture, provisional_key(picture))

    def _file_name(self, picture: str) -> str:
        files = self.library.files_of.get(picture)
        return min(PurePosixPath(file.name).name for file in files) if files else ""

    def lacking(self, fold: Fold) -> list[str]:
        """Answered pictures whose pixels have not been read yet."""
        answered = {picture for label in fold.labels for picture in fold.latest[label]}
        return sorted(answered - self._keys.keys())

    def keep(self, pictures: Iterable[str]) -> None:
        """Reads these pictures' pixels and stores, beside the answers, what a bank needs of them."""
        rows = [row for picture in pictures if (row := self._example_row(picture)) is not None]
        if rows:
            self.project.keep_examples(self.model.space_key, rows)
            for row in rows:
                self._know(row)
        self._last_of = None

    def _example_row(self, picture: str) -> ExampleRow | None:
        older = self.project.any_example(picture)
        try:
            image = decode(self._read(picture), picture)
            pixels, small, name = pixel_digest(image), thumbnail(image), self._file_name(picture)
        except InputError:
            if older is None or not older.small:
                return None
            image = decode(older.small, picture)
            pixels, small, name = older.pixels, older.small, older.name
        if self.key(picture) is None:
            features = Quantised.of(self.model.encode(squash(image, self.model.size)[None])[0])
        else:
            features = self._plain[picture].features
        return ExampleRow(picture, pixels, name, features.codes.tobytes(), features.scales.tobytes(), small)

    def write(self, bank: Bank) -> bool:
        """Replaces the bank on disk atomically; returns False if it is already up to date."""
        state = digest(
            self.model.fingerprint,
            *(
                repr((name, each.kind, each.words, each.threshold, each.prior))
                for name, each in bank.definitions.items()
            ),
            *(repr((key, sorted(each.labels), sorted(each.absent))) for key, each in bank.examples.items()),
        )
        if state == self._written and self.path.exists():
            return False
        self.project.check_place()
        pictures = {key: picture for picture, key in self._keys.items() if key in bank.examples}
        small = self.project.small_copies(self.model.space_key, sorted(pictures.values()))
        whole = {key: replace(each, picture=small.get(key, b"")) for key, each in bank.examples.items()}
        full = AnswersBank(bank.definitions, whole, dict(bank.fits))
        with locked(self.path):
            scorer = Scorer(bank, self.model) if bank.classes else None
            thresholds = {} if scorer is None else dict(zip(scorer.labels, scorer.thresholds.tolist(), strict=True))
            write_bank(self.path, full, self.model, thresholds)
        self.project.set_meta(bank=state)
        self._written = state
        return True

    def lost(self) -> int:
        """How many examples of the bank on disk no change of the log is about: answers that it has lost."""
        told = {said.picture for change in self.project.log.changes.values() for said in change.answers}
        read = {pixels for picture, pixels in self.project.example_keys() if picture in told}
        known = {provisional_key(picture) for picture in told} | read
        return sum(key not in known for key in self._on_disk())

    def differs(self, bank: Bank) -> str:
        """How the bank on disk differs from this one, in a sentence; empty if it does not."""
        if not self.path.exists():
            return f"there is no {BANK}; it is made anew at the next change"
        on_disk = self._on_disk()
        mine = {key: (sorted(each.labels), sorted(each.absent)) for key, each in bank.examples.items()}
        if on_disk == mine:
            return ""
        return f"{BANK} holds {len(on_disk)} examples, the answers make {len(mine)}; it is made anew at the next change"

    def _on_disk(self) -> dict[str, tuple[list[str], list[str]]]:
        try:
            header = read_header(self.path)
        except InputError:
            return {}
        names = [label["name"] for label in header["labels"]]
        return {
            each["digest"]: (
                sorted(names[number] for number in each["labels"]),
                sorted(names[number] for number in each["absent"]),
            )
            for each in header["examples"]
        }


def is_taught(said: Said) -> bool:
    """Whether an answer is learnt from."""
    return said.answer != "unknown" and said.source not in UNTAUGHT and not said.former


def told_in(fold: Fold) -> dict[str, Annotation]:
    """What is said about each picture by yes and no, without the answers from which nothing is to be learnt."""
    shown: dict[str, set[str]] = {}
    absent: dict[str, set[str]] = {}
    for label in fold.labels.values():
        for picture, said in fold.latest[label.id].items():
            if is_taught(said):
                (shown if said.answer == "yes" else absent).setdefault(picture, set()).add(label.name)
    return {
        picture: Annotation(frozenset(shown.get(picture, ())), frozenset(absent.get(picture, ())))
        for picture in {*shown, *absent}
    }
