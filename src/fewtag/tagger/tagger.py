"""The tagger: new labels from one example each, without training."""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from fewtag.errors import InputError
from fewtag.files import StrPath, digest, locked
from fewtag.pictures.decode import Decoded, Square, pixel_digest, squash
from fewtag.pictures.files import ImageLike, is_one, open_image, several
from fewtag.tagger import hub, stream
from fewtag.tagger.bank import Bank, Definition, by_names_or_none, define, is_share, label_name, renamed, told_of
from fewtag.tagger.bank_file import prototypes, read_bank, read_header, refuse_derived, refuse_examples, write_bank
from fewtag.tagger.explain import Heat, heat_map, hide_parts
from fewtag.tagger.model import Model, load_model, load_model_of
from fewtag.tagger.stream import BATCH, Scorer, Tagged

Images = ImageLike | Iterable[ImageLike] | Sequence[Decoded]
Labels = Iterable[str | Iterable[str]]
Saying = tuple[Labels, Labels | None, bool]  # labels, absent ones, and whether that is complete
OnError = Callable[[InputError], None] | None
Progress = Callable[[int], None] | None
Change = Callable[[Bank], Bank]
"""What teaching does to a bank, ready to be done again to the same bank as another process left it."""


class Tagger:
    """Learns labels from a picture or a word each, and tags pictures with them.

    `model` is "default", "accurate" (larger pictures, slower), "coco52" (fitted on 52 labels of COCO alone, for honest
    tests) or the path of a model; `words` is a file of word vectors to use instead of the shipped table; `device` is
    "auto", "cpu" or "cuda". With `keep_pictures=False` a saved bank holds no small copies of its examples: it cannot
    show them, nor move to a newer model; loaded and taught further, it gets none either. It begins with what a `bank`
    of the same model knows. The network is loaded at its first use. One thread may teach a tagger while others ask it.

    >>> from PIL import Image
    >>> red, blue = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 64), "blue")
    >>> tagger = Tagger().fit([red, blue], [["strawberry"], ["sea", "sky"]])
    >>> tagger.classes_
    ('sea', 'sky', 'strawberry')
    >>> tagger.predict_proba([red, blue]).shape
    (2, 3)
    >>> tagger.counts_["sea"]
    1
    """

    def __init__(
        self,
        model: StrPath | Model = "default",
        *,
        words: StrPath | None = None,
        device: str = "auto",
        keep_pictures: bool = True,
        bank: Bank | None = None,
    ) -> None:
        self.model = model if isinstance(model, Model) else load_model(model, words=words, device=device)
        self.keep_pictures = keep_pictures
        self._lock = threading.RLock()  # for writers; readers take the bank once, and it never changes
        self._bank = Bank() if bank is None else bank
        self._saved: tuple[Path, dict[str, Any]] | None = None  # a file and its header, with the sum of its numbers
        self._changes: list[Change] = []  # since that file was read or written

    def __repr__(self) -> str:
        known = f"labels={len(self._bank.definitions)}, examples={len(self._bank.examples)}"
        return f"Tagger(model={self.model.name!r}, words={self.model.words_name!r}, {known})"

    def __reduce__(self) -> tuple[Callable[[], "Tagger"], tuple[()], dict[str, Any]]:
        """A copy, in another process too, adds to the same file as this one does."""
        make = partial(type(self), self.model, keep_pictures=self.keep_pictures, bank=self._bank)
        return make, (), {"_saved": self._saved, "_changes": list(self._changes)}

    def fit(
        self,
        images: Images,
        labels: Labels,
        *,
        absent: Labels | None = None,
        complete: bool = False,
        on_error: OnError = None,
        progress: Progress = None,
    ) -> Self:
        """Learn these examples and forget all others; what labels were defined to mean stays.

        `images` are paths, bytes, PIL images or arrays (height × width × 3 of uint8), one or many; `labels` are the
        names that each one shows, `absent` those that it does not show. What is neither is unknown, and counts as a
        weak 'no'; with `complete` whatever a picture does not name is absent, labels of the future included. An example
        is known by its pixels: given twice, it shows what both say. With `on_error` a picture that cannot be read is
        left out and told of there, instead of refused; `progress` is told how many are done.

        >>> from PIL import Image
        >>> Tagger().fit(Image.new("RGB", (64, 64), "red"), "strawberry").classes_
        ('strawberry',)
        """
        return self._learn(images, (labels, absent, complete), True, on_error, progress)

    def partial_fit(
        self,
        images: Images,
        labels: Labels,
        *,
        absent: Labels | None = None,
        complete: bool = False,
        on_error: OnError = None,
        progress: Progress = None,
    ) -> Self:
        """Learn these examples too, as `fit` does; a picture known already gains what is said now.

        Order does not matter, but of one picture and one label the latest word counts. A complete picture keeps labels
        said earlier that it does not name now: a warning tells of them.

        >>> from PIL import Image
        >>> red, pink = Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 64), "pink")
        >>> tagger = Tagger().fit([red], [["strawberry"]]).partial_fit([pink], [[]], absent=[["strawberry"]])
        >>> tagger.predict(pink, threshold=0.001)
        [()]
        """
        return self._learn(images, (labels, absent, complete), False, on_error, progress)

    def define(
        self,
        label: str,
        *,
        like: Sequence[str] | str | None = None,
        vector: Sequence[float] | NDArray[np.floating] | None = None,
        words: bool = True,
    ) -> Self:
        """Say what a label means: its own name, `like` other words, a `vector`, or no words (`words=False`).

        A label needs no picture where a word stands for it.

        >>> Tagger().define("ectopia lentis", like=["lens", "eye"]).classes_
        ('ectopia lentis',)
        """
        name = label_name(label)
        with self._lock:
            meaning = define(name, self.model, self._bank.definitions, like=like, vector=vector, words=words)
            self._do(partial(Bank.define, label=name, definition=meaning))
        return self

    def forget(self, label: str, image: ImageLike | Decoded | None = None, *, example: str | int | None = None) -> Self:
        """Forget a label, or one example of it: by its picture, by its file's name or by its number in `examples_`.

        A picture that was said not to show the label, or to show nothing but others, becomes unknown again in the same
        way; one that nothing else is said of leaves the bank with its copy. A label that was never defined goes with
        the last picture that something is said of it by.
        """
        if image is not None and example is not None:
            raise InputError("an example is named twice; give its picture, or its name or number")
        with self._lock:
            name = self._bank.find(label)
            keys = None if example is None else self._bank.called(name, example)
            if image is not None:
                keys = [image.key if isinstance(image, Decoded) else pixel_digest(open_image(image))]
                if keys[0] not in self._bank.speaking_of(name):
                    shown, count = image if isinstance(image, str | os.PathLike) else "given", self.counts_[name]
                    raise InputError(f"image {shown} is no example of label {name!r}, which has {count}")
            self._do(partial(Bank.forget, label=name, keys=keys))
        return self

    def rename(self, label: str, name: str, *, merge: bool = False) -> Self:
        """Call a label something else; with `merge` it may become one with a label that is there.

        Those under it go along: "birds/heron" with "birds", be that a label itself or not.

        >>> Tagger().define("birds/heron").rename("birds", "animals").classes_
        ('animals/heron',)
        """
        with self._lock:
            known, old, new = self._bank.definitions, label_name(label), label_name(name)
            names = renamed(known, old, new, merge=merge)
            if not names:
                self._bank.find(old)
            if new == old:
                return self
            anew = old in known and known[old].by_name and new not in known
            meanings = {old: by_names_or_none([new], self.model)[new]} if anew else {}
            self._do(partial(Bank.rename, names=names, meanings=meanings))
        return self

    def set_thresholds(self, thresholds: Mapping[str, float | None]) -> Self:
        """Give these labels from these probabilities on; None goes back to the model's own."""
        for label, value in thresholds.items():
            if value is not None and not is_share(value):
                raise InputError(f"the threshold of label {label!r} is {value!r}; give one from 0 to 1, or None")
        return self._set("threshold", thresholds)

    def set_priors(self, priors: Mapping[str, float | None]) -> Self:
        """Say which share of the pictures shows each of these labels; None goes back to the model's own guess.

        Probabilities move with it (prior shift), and thresholds follow, but for those that were set.
        """
        for label, value in priors.items():
            if value is not None and (not is_share(value) or value in {0, 1}):
                raise InputError(f"the share of pictures with label {label!r} is {value!r}; give one between 0 and 1")
        return self._set("prior", priors)

    def _set(self, what: str, values: Mapping[str, float | None]) -> Self:
        with self._lock:
            numbers = {label: None if value is None else float(value) for label, value in values.items()}
            named = {self._bank.find(label): {what: value} for label, value in numbers.items()}
            self._do(partial(Bank.set, values=named))
        return self

    @property
    def bank_(self) -> Bank:
        """All that was learnt, as a value that never changes."""
        return self._bank

    @property
    def saved_digest_(self) -> str:
        """A digest of the bank file that this was loaded from, or saved to last; empty where there is none."""
        return digest(json.dumps(self._saved[1], sort_keys=True)) if self._saved and self._saved[1] else ""

    @property
    def classes_(self) -> tuple[str, ...]:
        """The labels that are scored, sorted; one defined without words joins them with its first example."""
        return self._bank.classes

    @property
    def counts_(self) -> Mapping[str, int]:
        """How many examples each label has."""
        return MappingProxyType({label: len(keys) for label, keys in self._bank.members.items()})

    @property
    def absent_counts_(self) -> Mapping[str, int]:
        """Of how many pictures someone said that they do not show each label."""
        return MappingProxyType({label: len(keys) for label, keys in self._bank.refused.items()})

    @property
    def priors_(self) -> Mapping[str, float]:
        """The share of pictures that is taken to show each label."""
        return self._scored("shares")

    @property
    def definitions_(self) -> Mapping[str, Definition]:
        """What each label means before any picture of it."""
        return MappingProxyType(dict(self._bank.definitions))

    @property
    def trusts_(self) -> Mapping[str, float]:
        """How far each label's pictures bear its name out: the probability that the name means what they show."""
        bank = self._bank
        return MappingProxyType({label: bank.classifier(self.model, label).trust for label in bank.classes})

    @property
    def thresholds_(self) -> Mapping[str, float]:
        """The probability from which each label is given."""
        return self._scored("thresholds")

    def _scored(self, what: Literal["shares", "thresholds"]) -> Mapping[str, float]:
        if not self._bank.classes:
            return MappingProxyType({})
        scorer = self.scorer()
        return MappingProxyType(dict(zip(scorer.labels, getattr(scorer, what).tolist(), strict=True)))

    def examples_(self, label: str) -> tuple[str, ...]:
        """The file names of a label's examples, in the order of their numbers, which begin with 1."""
        bank = self._bank
        return tuple(bank.examples[key].name for key in bank.members[bank.find(label)])

    def predict_proba(self, images: Images) -> NDArray[np.float32]:
        """Calibrated probabilities: a row a picture, a column for each of `classes_`.

        `tag` gives names and probabilities together, which matters where another thread teaches meanwhile.
        """
        scorer = self.scorer()
        places = stream.encode_stream(self.model, stream.items_of(images))
        empty = np.empty((0, len(scorer.labels)), np.float32)
        return np.concatenate([empty, *(scorer.probabilities(batch) for batch in places)])

    def predict(self, images: Images, threshold: float | None = None) -> list[tuple[str, ...]]:
        """The names over their threshold, likeliest first, of one picture or many; `threshold` stands for each one's.

        >>> from PIL import Image
        >>> tagger = Tagger().fit([Image.new("RGB", (64, 64), "red")], [["strawberry"]])
        >>> tagger.predict(Image.new("RGB", (32, 32), "red"), threshold=0.0)
        [('strawberry',)]
        """
        scorer = self.scorer(threshold)
        places = stream.encode_stream(self.model, stream.items_of(images))
        return [tags for batch in places for tags in scorer.tags(scorer.probabilities(batch))]

    def tag(
        self,
        images: Images,
        *,
        threshold: float | None = None,
        batch: int = BATCH,
        cache: StrPath | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Tagged]:
        """A row for each picture, in order, in the memory of a few batches, however many there are.

        A row has `image` (its path, or "number 3"), `tags`, `scores` (every label's probability by name) and, where the
        picture could not be read, `failure` alone. `cache` is a folder that keeps what the network made of a picture.

        >>> from PIL import Image
        >>> tagger = Tagger().define("strawberry")
        >>> [(row.image, bool(row.failure)) for row in tagger.tag([Image.new("RGB", (8, 8)), "no-such.jpg"])]
        [('number 1', False), ('no-such.jpg', True)]
        """
        if batch < 1:
            raise InputError(f"the batch is {batch} pictures; give 1 or more")
        scorer, items = self.scorer(threshold), stream.items_of(images)

        def rows() -> Iterator[Tagged]:
            with stream.cached_places(self.model, cache) as space:
                for some in stream.tag_stream(self.model, scorer, items, batch=batch, space=space):
                    yield from some
                    if progress is not None:
                        progress(len(some))

        return rows()  # not a generator itself: what is refused is refused at once

    def estimate_priors(self, images: Images) -> dict[str, float]:
        """The share of pictures like these that show each label, by expectation maximisation on their probabilities.

        A random sample of some hundred pictures will do. The bank stays as it is: `set_priors` keeps them.
        """
        found, count = stream.estimate_priors(self.scorer(), stream.encode_stream(self.model, stream.items_of(images)))
        if not count:
            raise InputError("there is no picture to estimate priors from; give some hundred")
        return found

    def explain(self, image: ImageLike, label: str) -> Heat:
        """How much the label leans on each part of the picture, from 0 to 1, height × width of the picture.

        By what its probability loses where the part is hidden: 37 passes of the network. The scale is the same for all
        labels: what is not there stays dark.
        """
        return self.explain_all(image, [label])[0][label_name(label)]

    def explain_all(self, image: ImageLike, labels: Sequence[str]) -> tuple[dict[str, Heat], dict[str, float]]:
        """The heat-maps of several labels, and their probabilities."""
        picture = open_image(image)
        found = self.leaning(squash(picture, self.model.size), labels)
        chances = {name: chance for name, (_, chance) in found.items()}
        return {name: heat_map(*each, picture.size) for name, each in found.items()}, chances

    def leaning(self, square: Square, labels: Sequence[str]) -> dict[str, tuple[NDArray[np.float32], float]]:
        """Of each label its log-odds for a picture and for its copies with a part hidden, and its probability."""
        bank = self._bank
        names = [bank.find(label) for label in labels]
        scorer = Scorer(bank, self.model)
        for name in names:
            if name not in bank.classes:
                raise InputError(f"label {name!r} has neither a word nor an example yet; give it one")
        places = self.model.encode(hide_parts(square))
        logits, chances = scorer.logits(places), scorer.probabilities(places[:1])[0].tolist()
        columns = {name: scorer.labels.index(name) for name in names}
        return {name: (logits[:, column], chances[column]) for name, column in columns.items()}

    def save(self, path: StrPath, *, examples: bool = True) -> None:
        """Write one file; a kill in the middle leaves the old one.

        Where another process changed the bank that this tagger was loaded from, or saved to, since then, what was
        taught here is added to that, and nothing is lost. Another file is replaced. Without `examples` it is a copy to
        be shared: it gives the same probabilities, but to pictures that someone said 'no' to, and nothing of a single
        picture is in it. Such a copy takes the place of no bank that has examples.
        """
        target = Path(path)
        refuse_derived(target)
        with self._lock, locked(target):
            if not examples:
                refuse_examples(target)
            same = self._saved is not None and self._saved[0] == target.resolve()
            if same and target.exists():
                self._catch_up(target)
            kept = self._bank if examples else prototypes(self._bank, self.model)
            write_bank(target, kept, self.model, self.thresholds_)
            if examples or same:
                self._note_saved(target, read_header(target))

    @classmethod
    def load(
        cls,
        path: StrPath,
        *,
        model: StrPath | Model | None = None,
        words: StrPath | None = None,
        device: str = "auto",
        upgrade: bool = False,
    ) -> Self:
        """What `save` wrote. `model` says where that file is now, if it has moved; `words` where word vectors of one's
        own are, which only new names need. With `upgrade` a bank of another model moves to this one: its examples'
        small copies go through the network again."""
        header, bank = read_bank(Path(path))
        facts = header["model"]
        if not isinstance(model, Model):
            model = load_model_of(facts, path, model, words=words, device=device)
        if model.fingerprint != facts["fingerprint"]:
            if not upgrade:
                raise InputError(
                    f"bank {path} was made with another model {facts['name']!r} (words {facts['words']!r}, fewtag "
                    f"{header['fewtag']}); move it to this one with `upgrade`, or load it with that one"
                )
            bank = stream.migrated(bank, model, facts, path)
        # one without copies was meant so, whoever teaches it further
        keep = not bank.examples or any(each.picture for each in bank.examples.values())
        tagger = cls(model, bank=bank, keep_pictures=keep)
        tagger._note_saved(Path(path), header)
        return tagger

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        model: StrPath | None = None,
        words: StrPath | None = None,
        device: str = "auto",
        keep_pictures: bool = True,
    ) -> Self:
        """The bank at this path, or a new one for it: `save` adds to what another process may put there meanwhile."""
        target = Path(path)
        if target.exists():
            tagger = cls.load(target, model=model, words=words, device=device)
            tagger.keep_pictures &= keep_pictures
        else:
            tagger = cls(model or "default", words=words, device=device, keep_pictures=keep_pictures)
            tagger._saved = target.resolve(), {}
        return tagger

    save_pretrained, push_to_hub = hub.save_pretrained, hub.push_to_hub
    from_pretrained = classmethod(hub.from_pretrained)

    def _learn(self, images: Images, said: Saying, afresh: bool, on_error: OnError, progress: Progress) -> Self:
        pictures, told = several(images), told_of(*said, one=is_one(images))
        names = sorted(frozenset().union(*(each.labels for each in told)))
        known = self._bank.examples
        refused = self._bank.definitions_of_absent(told, names, afresh)
        learnt = stream.encode_examples(self.model, pictures, told, known, self.keep_pictures, on_error, progress)
        if not afresh:
            stream.warn_of_contradictions(known, learnt)
        with self._lock:
            kept = self._bank.definitions_to_keep(afresh)
            # known ones too: another process may have forgotten them when this is saved
            new = by_names_or_none([name for name in names if name not in kept], self.model)
            definitions = {name: kept.get(name) or new[name] for name in names}
            self._do(partial(Bank.learn, definitions={**refused, **definitions}, examples=learnt, afresh=afresh))
        return self

    def _do(self, change: Change) -> None:
        self._bank = change(self._bank)
        if self._saved is not None:
            self._changes.append(change)

    def _catch_up(self, path: Path) -> None:
        """Replays what was taught since the file was read on the bank that is there now, if that is another one."""
        header = read_header(path)
        if self._saved == (path.resolve(), header):
            return
        if header["model"]["fingerprint"] != self.model.fingerprint:
            raise InputError(
                f"bank {path} is now one of another model {header['model']['name']!r}; load it again, or save elsewhere"
            )
        self._bank = reduce(lambda bank, change: change(bank), self._changes, read_bank(path)[1])

    def _note_saved(self, path: Path, header: dict[str, Any]) -> None:
        self._saved, self._changes = (path.resolve(), header), []

    def scorer(self, threshold: float | None = None, shares: Mapping[str, float] | None = None) -> Scorer:
        """The labels as they are now, ready to score; `threshold` stands for each one's own."""
        return Scorer(self._bank, self.model, threshold, shares)
