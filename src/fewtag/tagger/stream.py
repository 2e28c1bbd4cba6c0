"""The pipeline from pictures to rows and to examples: read ahead in threads, encoded in batches, through the cache."""

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import __version__ as pillow_version

from fewtag.cache import ArrayRows, Cache, content_digest
from fewtag.core.calibration import estimate_priors, log_odds, match_priors, sigmoid, steepness
from fewtag.core.posterior import Classifiers, Places, unit
from fewtag.errors import InputError, plural, warn
from fewtag.files import digest
from fewtag.pictures.decode import DECODING, Decoded, Square, decode, pixel_digest, squash, squash_bytes, thumbnail
from fewtag.pictures.files import as_text, encoded_bytes, file_name, open_image, several
from fewtag.pictures.prefetch import batches, prefetch
from fewtag.tagger.bank import (
    Annotation,
    Bank,
    Definition,
    Example,
    by_names,
    check_annotation,
    check_threshold,
    define,
    words_of,
)
from fewtag.tagger.model import Model

BATCH = 32
GROUP = 8
"""Pictures that a reading thread takes at once: they share its overhead, and their encoded bytes are small."""
DIGITS = 6
"""Decimals of a probability in a row."""
_SINGLE = np.array(0x8FFFE000, np.uint32).view(np.int32)
"""The bits of a half-precision number within a shifted 32-bit one, without the copies of the sign from the shift."""
SAME = 0.995
"""Cosine of two pictures' means from which they are the same: decoded or scaled differently, but no other shot."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A picture's row: the labels over their threshold, likeliest first, and every label's probability.

    If the picture could not be read, `failure` says why and the rest is empty.
    """

    image: str
    tags: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    cached: bool = field(default=False, compare=False)


class Item(NamedTuple):
    """A picture to tag: its name in the row, and the picture in any accepted form, or why it could not be read."""

    name: str
    image: object


class Scorer:
    """A snapshot of a bank's labels, ready to score; later teaching does not change it.

    `threshold` replaces each label's own; `priors` are for labels for which the bank has none of its own.
    """

    def __init__(
        self, bank: Bank, model: Model, threshold: float | None = None, priors: Mapping[str, float] | None = None
    ):
        if not bank.classes:
            raise InputError("no label is known yet; learn one from a picture, or define one by its name")
        check_threshold(threshold)
        self.labels = bank.classes
        self.counts, fitted = bank.counts, [bank.classifier(model, label) for label in bank.classes]
        self.classifiers, self._strengths = Classifiers.of(fitted), model.strengths
        calibration, own = model.calibration, [bank.definitions[label] for label in bank.classes]
        usual = [(priors or {}).get(label, calibration.share) for label in bank.classes]
        given = [each.prior if each.prior is not None else other for each, other in zip(own, usual, strict=True)]
        self.priors = np.array(given, np.float32)
        noes, coherence = np.array([[each.noes, each.coherence] for each in fitted], np.float32).T
        self.steeper = calibration.steeper(self.counts, coherence)
        self.slopes, self.offsets = calibration.curves(self.counts, noes, self.priors, coherence)
        self.thresholds = calibration.threshold(self.counts, self.priors)
        for column, each in enumerate(own):
            if threshold is not None or each.threshold is not None:
                self.thresholds[column] = threshold if threshold is not None else each.threshold
        refused = [each for each in bank.examples.values() if each.absent]
        self._refused = np.array([each.features.pooled.mean for each in refused], np.float32)
        self._absent = np.zeros((len(refused), len(bank.classes)), np.bool_)
        column_of = {label: column for column, label in enumerate(bank.classes)}
        for row, example in zip(self._absent, refused, strict=True):
            row[[column_of[label] for label in example.absent if label in column_of]] = True
        self._bank = bank
        self._shown: dict[int, NDArray[np.float32]] = {}  # by column: the means of a label's examples, once needed

    def logits(self, places: Places) -> NDArray[np.float32]:
        """Calibrated log-odds, images × labels."""
        return self.slopes * self.classifiers.logits(places, self._strengths) + self.offsets

    def probabilities(self, places: Places) -> NDArray[np.float32]:
        """images × labels; a person's 'no' to a picture is final, whichever file that picture comes from again, unless
        a more similar one is said to show the label"""
        chances = sigmoid(self.logits(places))
        if len(self._refused):
            means = unit(places.mean(axis=1))
            alike = means @ self._refused.T
            for column in np.flatnonzero(self._absent[(alike > SAME).any(axis=0)].any(axis=0)).tolist():
                refused = alike[:, self._absent[:, column]].max(axis=1)
                final = (refused > SAME) & (refused >= self._most_alike(column, means))
                chances[final, column] = 0
        return chances

    def _most_alike(self, column: int, means: NDArray[np.float32]) -> NDArray[np.float32] | float:
        """How similar each picture is to the most similar one that is said to show a label."""
        if column not in self._shown:
            members = self._bank.members[self.labels[column]]
            self._shown[column] = np.array([self._bank.examples[key].features.pooled.mean for key in members])
        shown = self._shown[column]
        return (means @ shown.T).max(axis=1) if len(shown) else 0.0

    def tags(self, probabilities: NDArray[np.float32]) -> list[tuple[str, ...]]:
        """For each image the labels over their threshold, likeliest first; ties are sorted by name.

        A label that a person said 'no' to has probability 0, which reaches no threshold.
        """
        images, columns = np.nonzero((probabilities >= self.thresholds) & (probabilities > 0))
        order = np.lexsort((columns, -probabilities[images, columns], images))
        given: list[list[str]] = [[] for _ in probabilities]
        for image, column in zip(images[order].tolist(), columns[order].tolist(), strict=True):
            given[image].append(self.labels[column])
        return [tuple(names) for names in given]

    def scores(self, probabilities: NDArray[np.float32]) -> list[dict[str, float]]:
        """For each image every label's probability, rounded."""
        return [
            {label: round(value, DIGITS) for label, value in zip(self.labels, values, strict=True)}
            for values in probabilities.tolist()
        ]


@contextmanager
def cached_places(model: Model, folder: str | os.PathLike[str] | None) -> Iterator[ArrayRows | None]:
    """This model's rows in the cache in a folder; None without a folder.

    Places depend on no label, so cached pictures stay valid as a bank learns.
    """
    if folder is None:
        yield None
        return
    network = model.header["network"]
    decoders = pillow_version, _heif_version(), str(DECODING)
    key = digest(model.space_key, model.network.likely_device, *decoders)
    # with some of the key, so that what another version left is told apart
    what = f"model {model.name} {key[:6]}: {network.get('name', 'network')}, {model.size} × {model.size} pixels"
    with Cache(Path(folder)) as opened:
        yield opened.arrays("places", what, key, (model.places, *model.space.basis.shape[1:]), "float16")


def _heif_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # imported here: listing labels does not need it

    try:
        return version("pi-heif")
    except PackageNotFoundError:
        return "none"


class Read(NamedTuple):
    """A picture as a reading thread hands it on: its square of pixels, or its places from the cache."""

    name: str
    digest: bytes | None = None
    pixels: Square | None = None
    places: NDArray[np.float16] | None = None
    failure: str = ""


def tag_stream(
    model: Model,
    scorer: Scorer,
    items: Iterable[Item],
    *,
    batch: int = BATCH,
    scores: bool = True,
    cache: ArrayRows | None = None,
    loaders: int | None = None,
) -> Iterator[list[Tagged]]:
    """Rows in the order of the items, a batch at a time; the next batches are read while the network works on this one.

    Each picture is read once, by `loaders` threads if it comes from far away, and decoded only if it is not in the
    cache. Memory is bounded by a few batches.
    """

    def tag(reads: Sequence[Read]) -> list[Tagged]:
        return tag_reads(model, scorer, reads, cache, scores=scores)

    # two batches at once: a core that is done with one goes on with the next, and none waits for scoring and cache
    return prefetch(tag, read_ahead(model, items, batch, cache, loaders), 1, threads=2, give_way=False)


def tag_reads(
    model: Model, scorer: Scorer, reads: Sequence[Read], cache: ArrayRows | None, *, scores: bool = True
) -> list[Tagged]:
    """The rows of a batch."""
    good = [read for read in reads if not read.failure]
    places = places_of(model, good, cache) if good else np.empty((0, model.places, model.space.size), np.float32)
    probabilities = scorer.probabilities(places)
    every = scorer.scores(probabilities) if scores else [{}] * len(good)
    given = zip(scorer.tags(probabilities), every, strict=True)
    return [
        Tagged(read.name, failure=read.failure)
        if read.failure
        else Tagged(read.name, *next(given), cached=read.places is not None)
        for read in reads
    ]


def encode_stream(
    model: Model, items: Iterable[Item], *, batch: int = BATCH, cache: ArrayRows | None = None, skip_bad: bool = False
) -> Iterator[Places]:
    """The pictures' places, a batch at a time; a picture that cannot be read raises InputError, or is skipped."""
    for reads in read_ahead(model, items, batch, cache):
        good = [read for read in reads if not read.failure]
        if len(good) < len(reads) and not skip_bad:
            raise InputError(next(read.failure for read in reads if read.failure))
        if good:
            yield places_of(model, good, cache)


def priors_by_sample(
    scorer: Scorer, places: Iterable[Places], said: float | None = None
) -> tuple[dict[str, float], int]:
    """The estimated share of pictures like these that show each label, and how many pictures there were.

    If a share is `said`, each label gets the prior under which these pictures' mean probability equals it.
    """
    # without the steepness, which is that of the priors assumed so far
    steep = steepness(scorer.steeper, scorer.priors)
    evidence = [(scorer.logits(batch) - log_odds(scorer.priors)) / steep for batch in places]
    if not evidence:
        return {}, 0
    every = np.concatenate(evidence)
    if said is None:
        found = estimate_priors(every)
    else:
        found = match_priors(every, scorer.steeper, np.full(len(scorer.labels), said, np.float32))
    return dict(zip(scorer.labels, found.tolist(), strict=True)), sum(map(len, evidence))


def read_ahead(
    model: Model, items: Iterable[Item], batch: int, cache: ArrayRows | None = None, loaders: int | None = None
) -> Iterator[Sequence[Read]]:
    """Batches of pictures prepared by reading threads; encoded ones are looked up in the cache first."""
    group = min(GROUP, batch)
    ahead = 2 * batch // group
    if loaders is None:
        groups = prefetch(lambda some: _read(map(_load, some), model.size, cache), batches(iter(items), group), ahead)
    else:
        loaded = prefetch(_load, items, 2 * loaders, loaders)
        groups = prefetch(lambda some: _read(some, model.size, cache), batches(loaded, group), ahead)
    return batches((read for some in groups for read in some), batch)


def _load(item: Item) -> Item:
    """Reads a picture: returns the item with its encoded bytes, if it has any, or with the error that occurred."""
    name, image = item
    try:
        name.encode()
        data = None if isinstance(image, InputError) else encoded_bytes(image, name)
        return item if data is None else Item(name, data)
    except UnicodeEncodeError:
        return Item(name, InputError(f"the name of the file {as_text(name)} is no UTF-8 text; rename it"))
    except InputError as error:
        return Item(name, error)


def _read(some: Iterable[Item], size: int, cache: ArrayRows | None) -> list[Read]:
    """Prepares a group of pictures, with one cache lookup for all: several keys take as long as one."""
    loaded = deque(some)
    keys = [content_digest(image) if cache is not None and isinstance(image, bytes) else None for _, image in loaded]
    asked = [key for key in keys if key is not None]
    known = dict(zip(asked, cache.get_many(asked), strict=True)) if cache is not None and asked else {}
    reads = []
    for key in keys:
        name, image = loaded.popleft()  # so that the encoded bytes of a decoded picture are freed
        if key is not None and (places := known[key]) is not None:
            reads.append(Read(name, key, places=places))
            continue
        try:
            square = squash_bytes(image, name, size) if isinstance(image, bytes) else _pixels(image, name, size)
            reads.append(Read(name, key, square))
        except InputError as error:
            reads.append(Read(name, failure=str(error)))
    return reads


def _pixels(image: object, name: str, size: int) -> Square:
    """A picture that is not encoded, as a square; an array of the right size is used as it is."""
    if isinstance(image, InputError):
        raise image
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape == (size, size, 3):
        return image.transpose(2, 0, 1)
    return squash(open_image(image, name), size)


def places_of(model: Model, reads: Sequence[Read], cache: ArrayRows | None) -> Places:
    """The pictures' places, from the cache, or by the network and then stored; the numbers are the same either way."""
    fresh = [read for read in reads if read.pixels is not None]
    if not fresh:
        return widen(np.stack([read.places for read in reads if read.places is not None]))
    encoded = model.encode([read.pixels for read in fresh if read.pixels is not None])
    if cache is not None:
        keys = {number: key for number, read in enumerate(fresh) if (key := read.digest) is not None}
        cache.put_many(list(keys.values()), encoded[list(keys)].astype(np.float16))
    rows = iter(encoded)
    return np.stack([next(rows) if read.places is None else widen(read.places) for read in reads])


def widen(halves: NDArray[np.float16]) -> Places:
    """Converts finite halves to single precision, four times as fast as numpy's cast on most processors.

    Sign, exponent and fraction are shifted into place; the multiplication corrects the exponent's bias.
    """
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _SINGLE
    wide = bits.view(np.float32)
    wide *= np.float32(2.0**112)
    return wide


def items_of(images: object) -> Iterator[Item]:
    """Items for one picture or many, named by their file or by their number."""
    return (Item(file_name(image) or f"number {number}", image) for number, image in enumerate(several(images), 1))


def encode_examples(
    model: Model,
    images: Iterable[object],
    annotations: Sequence[Annotation],
    known: Mapping[str, Example],
    keep_pictures: bool,
    on_error: Callable[[InputError], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Example]:
    """Examples by the digest of their pixels; a picture that is already known is not encoded again."""

    def read(item: tuple[int, object]) -> Decoded | InputError:
        number, image = item
        if isinstance(image, Decoded):
            return image if keep_pictures else image._replace(picture=b"")
        try:
            picture = open_image(image, f"number {number}")
            pixels = squash(picture, model.size)
            small = thumbnail(picture) if keep_pictures else b""
            return Decoded(pixels, pixel_digest(picture), PurePath(file_name(image)).name, small)
        except InputError as error:
            if on_error is None:
                raise
            return error

    if isinstance(images, Sized):
        same_length(len(images), len(annotations))
    encoded: dict[str, Example] = {}
    now: dict[str, Annotation] = {}
    # one picture more than there are labels is enough to detect a mismatch
    numbered = itertools.islice(enumerate(images, 1), len(annotations) + 1)
    annotation_of, count = iter(annotations), 0
    for group in batches(prefetch(read, numbered, BATCH), BATCH):
        count += len(group)
        fresh: dict[str, Decoded] = {}
        for each, more in zip(group, annotation_of, strict=False):
            if isinstance(each, InputError):
                assert on_error is not None
                on_error(each)
                continue
            # given twice in one call, as in the folders of two labels: it shows what both say
            before = now.get(each.key, Annotation())
            now[each.key] = Annotation(
                before.labels | more.labels, before.absent | more.absent, before.complete or more.complete
            )
            check_annotation(now[each.key], each.name or "a picture that is given twice")
            if each.key not in known and each.key not in encoded:
                fresh[each.key] = each
        if fresh:
            places = model.encode([each.pixels for each in fresh.values()])
            for each, its_places in zip(fresh.values(), places, strict=True):
                encoded[each.key] = Example.of(Annotation(), its_places, each.name, each.picture)
        if progress is not None:
            progress(len(group))
    same_length(count, len(annotations))
    if not now:
        raise InputError("there is no picture to learn from; give at least one that can be read, with its labels")
    # for a known picture only what is said now: the bank, perhaps changed by another process meanwhile, adds the rest
    return {key: replace(encoded.get(key) or known[key], annotation=each) for key, each in now.items()}


def warn_of_contradictions(known: Mapping[str, Example], learnt: Mapping[str, Example]) -> None:
    """Warns of labels that a complete picture keeps though it no longer names them: labels add up, so that a complete
    table per label does not erase the others."""
    left = [
        (before.name or "a picture", label)
        for key, each in learnt.items()
        if each.complete and (before := known.get(key))
        for label in sorted(before.labels - each.labels - each.absent)
    ]
    if left:
        warn(
            f"labels add up: {len(left)} said earlier of pictures that are complete now and do not name them stay, such"
            f" as {left[0][1]!r} of {left[0][0]}; to take one back, forget it of that picture, or say it is absent"
        )


def migrated(
    bank: Bank,
    model: Model,
    facts: Mapping[str, Any],
    path: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
) -> Bank:
    """Migrates a bank to another model by encoding its thumbnails again; `facts` describe its present model."""
    if lacking := bank.without_copies:
        raise InputError(
            f"bank {path} keeps no copies of {lacking} of its {len(bank.examples)} examples, so it cannot move "
            "to another model; learn those pictures again into a new bank"
        )
    same_words = not model.facts["own_words"] and not facts["own_words"] and facts["words"] == model.words_name
    definitions: dict[str, Definition] = {}
    for label in _others_first(bank.definitions):
        each = bank.definitions[label]
        if each.kind == "like" and not (same_words and _forgotten(each.words, model, definitions)):
            meaning = define(label, model, definitions, like=each.words, vector=None, words=True)
        elif same_words and each.kind != "name" and each.vector is not None:
            meaning = replace(each, prototype=model.word_prototypes(each.vector[None])[0])
        else:
            if each.kind == "vector":
                warn(
                    f"label {label!r} had a vector of its own, which means nothing among the words "
                    f"{model.words_name!r}: its name stands for it now; define it again"
                )
            meaning = Definition("none") if each.kind == "none" else by_names([label], model)[label]
        definitions[label] = replace(meaning, explicit=each.explicit, threshold=each.threshold, prior=each.prior)
    examples: dict[str, Example] = {}
    for group in batches(iter(bank.examples.items()), BATCH):
        pixels = [squash(decode(example.picture, example.name), model.size) for _, example in group]
        for (key, old), places in zip(group, model.encode(pixels), strict=True):
            examples[key] = Example.of(old.annotation, places, old.name, old.picture)
        if progress is not None:
            progress(len(group))
    return Bank().learn(definitions, examples, afresh=False)


def _others_first(definitions: Mapping[str, Definition]) -> Iterable[str]:
    """The labels, each after those that it is defined as like; a circle is cut where it closes."""
    order: dict[str, None] = {}
    for label in definitions:
        path = {} if label in order else {label: None}
        while path:
            last = next(reversed(path))
            words = definitions[last].words if definitions[last].kind == "like" else ()
            ahead = [word for word in words if word in definitions and word not in order and word not in path]
            if ahead:
                path[ahead[0]] = None
            else:
                order[last] = path.pop(last)
    return order


def _forgotten(words: Iterable[str], model: Model, definitions: Mapping[str, Definition]) -> bool:
    """Whether one of the words was a label that no longer exists, and is no known word either."""
    return any(word not in definitions and words_of(word, model)[-1] not in model.words for word in words)


def same_length(images: int, labels: int) -> None:
    """Refuses different numbers of pictures and label lists."""
    if images != labels:
        raise InputError(f"each picture needs its labels: found {plural(images, 'picture')} and labels for {labels}")
