"""The tagger: learns new labels from one example each, without training."""

import json
import os
import shlex
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
from fewtag.tagger import bank_file, hub, stream
from fewtag.tagger.bank import Bank, Definition, annotations_of, by_names, define, is_probability, label_name, renamed
from fewtag.tagger.explain import Heat, heat_map, hide_parts
from fewtag.tagger.model import Model, load_model, load_model_of
from fewtag.tagger.stream import BATCH, Scorer, Tagged

Images = ImageLike | Iterable[ImageLike] | Sequence[Decoded]
Labels = Iterable[str | Iterable[str]]
Saying = tuple[Labels, Labels | None, bool]  # labels, absent labels, and whether they are complete
OnError = Callable[[InputError], None] | None
Progress = Callable[[int], None] | None
Change = Callable[[Bank], Bank]
"""An edit of a bank, which can be replayed on the same bank as another process left it."""


class Tagger:
    """Learns labels from one picture or word each, and tags pictures with them.

    `model` is "default", "accurate" or "accurate-336" (larger pictures, slower), "coco52" (fitted on 52 labels of COCO
    only, for honest tests) or the path of a model; `words` is a file of word vectors to use instead of the shipped
    table; `device` is "auto", "cpu" or "cuda". With `keep_pictures=False` a saved bank holds no small copies of its
    examples: it can neither show them nor move to a newer model, and stays that way when it is loaded and taught
    further. `bank` is a bank of the same model to start from. The network is loaded at its first use. One thread may
    teach a tagger while others query it.

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
        self._lock = threading.RLock()  # for writers; readers take a reference to the immutable bank once
        self._bank = Bank() if bank is None else bank
        self._saved: tuple[Path, dict[str, Any]] | None = None  # a file and its header, with the checksum of its arrays
        self._changes: list[Change] = []  # since that file was read or written

    def __repr__(self) -> str:
        known = f"labels={len(self._bank.definitions)}, examples={len(self._bank.examples)}"
        return f"Tagger(model={self.model.name!r}, words={self.model.words_name!r}, {known})"

    def __reduce__(self) -> tuple[Callable[[], "Tagger"], tuple[()], dict[str, Any]]:
        """Pickles the tagger; a copy, even in another process, saves to the same file as this one."""
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
        """Learn these examples and forget all others; labels keep the meanings that they were defined with.

        `images` are paths, bytes, PIL images or arrays (height × width × 3 of uint8), one or many; `labels` are the
        names that each one shows, `absent` those that it does not show. Every other label is unknown, and counts as a
        weak 'no'; with `complete` every label that a picture does not name is absent, even labels that are taught
        later. An example is identified by its pixels: given twice, it shows what both say. With `on_error` a picture
        that cannot be read is passed to this function and left out, instead of raising; `progress` is called with the
        number of pictures done.

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
        """Learn these examples too, as `fit` does; what is said about a known picture is added.

        The order does not matter, except that for one picture and one label the latest statement counts. A complete
        picture keeps earlier labels that it does not name now, with a warning.

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

        A label that has a word needs no picture.

        >>> Tagger().define("ectopia lentis", like=["lens", "eye"]).classes_
        ('ectopia lentis',)
        """
        name = label_name(label)
        with self._lock:
            meaning = define(name, self.model, self._bank.definitions, like=like, vector=vector, words=words)
            self._do(partial(Bank.define, label=name, definition=meaning))
        return self

    def forget(self, label: str, image: ImageLike | Decoded | None = None, *, example: str | int | None = None) -> Self:
        """Forget a label, or one example of it: by its picture, by its file name or by its number in `examples_`.

        A picture that was said not to show the label, or to show nothing but others, becomes unknown again in the same
        way; a picture about which nothing else is said leaves the bank, with its small copy. A label that was never
        defined is dropped with the last picture that says something about it.
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
        """Rename a label; with `merge` the new name may be that of an existing label, into which it is merged.

        Labels below it are renamed too: "birds/heron" with "birds", whether or not "birds" is a label itself.

        >>> Tagger().define("birds/heron").rename("birds", "animals").classes_
        ('animals/heron',)
        """
        with self._lock:
            known, old, new = self._bank.definitions, self._bank.spelt(label), label_name(name)
            names = renamed(known, old, new, merge=merge)
            if not names:
                self._bank.find(old)
            if new == old:
                return self
            anew = old in known and known[old].by_name and new not in known
            meanings = {old: by_names([new], self.model)[new]} if anew else {}
            self._do(partial(Bank.rename, names=names, meanings=meanings))
        return self

    def set_thresholds(self, thresholds: Mapping[str, float | None]) -> Self:
        """Set the probabilities from which these labels are given; None restores the model's own threshold."""
        for label, value in thresholds.items():
            if value is not None and not is_probability(value):
                raise InputError(f"the threshold of label {label!r} is {value!r}; give one from 0 to 1, or None")
        return self._set("threshold", thresholds)

    def set_priors(self, priors: Mapping[str, float | None]) -> Self:
        """Set the share of pictures that show each of these labels; None restores the model's default.

        Probabilities change with it (prior shift), and so do thresholds that were not set explicitly.
        """
        for label, value in priors.items():
            if value is not None and (not is_probability(value) or value in {0, 1}):
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
        """Everything learnt, as an immutable value."""
        return self._bank

    @property
    def saved_digest_(self) -> str:
        """A digest of the bank file that the tagger was loaded from or last saved to; empty if there is none."""
        return digest(json.dumps(self._saved[1], sort_keys=True)) if self._saved and self._saved[1] else ""

    @property
    def classes_(self) -> tuple[str, ...]:
        """The labels that are scored, sorted; a label without words is added with its first example."""
        return self._bank.classes

    @property
    def counts_(self) -> Mapping[str, int]:
        """The number of examples of each label."""
        return MappingProxyType({label: len(keys) for label, keys in self._bank.members.items()})

    @property
    def absent_counts_(self) -> Mapping[str, int]:
        """The number of pictures that were said not to show each label."""
        return MappingProxyType({label: len(keys) for label, keys in self._bank.refused.items()})

    @property
    def priors_(self) -> Mapping[str, float]:
        """The share of pictures that are assumed to show each label."""
        return self._scored("priors")

    @property
    def definitions_(self) -> Mapping[str, Definition]:
        """What each label means before it has any picture."""
        return MappingProxyType(dict(self._bank.definitions))

    @property
    def trusts_(self) -> Mapping[str, float]:
        """The probability that each label's name means what its pictures show."""
        bank = self._bank
        return MappingProxyType({label: bank.classifier(self.model, label).trust for label in bank.classes})

    @property
    def thresholds_(self) -> Mapping[str, float]:
        """The probability from which each label is given."""
        return self._scored("thresholds")

    def _scored(self, what: Literal["priors", "thresholds"]) -> Mapping[str, float]:
        if not self._bank.classes:
            return MappingProxyType({})
        scorer = self.scorer()
        return MappingProxyType(dict(zip(scorer.labels, getattr(scorer, what).tolist(), strict=True)))

    def examples_(self, label: str) -> tuple[str, ...]:
        """The file names of a label's examples, in the order of their numbers, which start at 1."""
        bank = self._bank
        return tuple(bank.examples[key].name for key in bank.members[bank.find(label)])

    def predict_proba(self, images: Images) -> NDArray[np.float32]:
        """Calibrated probabilities: one row per picture, one column for each of `classes_`.

        `tag` returns names and probabilities together, which matters if another thread teaches meanwhile.
        """
        scorer = self.scorer()
        places = stream.encode_stream(self.model, stream.items_of(images))
        empty = np.empty((0, len(scorer.labels)), np.float32)
        return np.concatenate([empty, *(scorer.probabilities(batch) for batch in places)])

    def predict(self, images: Images, threshold: float | None = None) -> list[tuple[str, ...]]:
        """The labels over their threshold, likeliest first, of one picture or many; `threshold` replaces each one's.

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
        """A row for each picture, in order, in the memory of a few batches however many pictures there are.

        A row has `image` (the path, or "number 3"), `tags` and `scores` (every label's probability by name), or, if the
        picture could not be read, only `failure`. `cache` is a folder that keeps the network's output for each picture.

        >>> from PIL import Image
        >>> tagger = Tagger().define("strawberry")
        >>> [(row.image, bool(row.failure)) for row in tagger.tag([Image.new("RGB", (8, 8)), "no-such.jpg"])]
        [('number 1', False), ('no-such.jpg', True)]
        """
        if batch < 1:
            raise InputError(f"the batch is {batch} pictures; give 1 or more")
        scorer, items = self.scorer(threshold), stream.items_of(images)

        def rows() -> Iterator[Tagged]:
            with stream.cached_places(self.model, cache) as cached:
                for some in stream.tag_stream(self.model, scorer, items, batch=batch, cache=cached):
                    yield from some
                    if progress is not None:
                        progress(len(some))

        return rows()  # this function is no generator itself, so that bad arguments are refused at once

    def estimate_priors(self, images: Images) -> dict[str, float]:
        """The share of pictures like these that show each label: the most probable one, given their probabilities.

        A random sample of a few hundred pictures is enough. The bank is not changed: `set_priors` stores them.
        """
        found, count = stream.priors_by_sample(self.scorer(), stream.encode_stream(self.model, stream.items_of(images)))
        if not count:
            raise InputError("there is no picture to estimate priors from; give some hundred")
        return found

    def explain(self, image: ImageLike, label: str) -> Heat:
        """How much the label depends on each part of the picture, from 0 to 1, height × width of the picture.

        It is measured by how much the label's log-odds drop when the part is hidden, in 37 passes of the network. The
        scale is the same for all labels: a label that is not there stays dark.
        """
        return next(iter(self.explain_all(image, [label])[0].values()))

    def explain_all(self, image: ImageLike, labels: Sequence[str]) -> tuple[dict[str, Heat], dict[str, float]]:
        """The heat-maps of several labels, and their probabilities."""
        picture = open_image(image)
        found = self.leaning(squash(picture, self.model.size), labels)
        chances = {name: chance for name, (_, chance) in found.items()}
        return {name: heat_map(*each, picture.size) for name, each in found.items()}, chances

    def leaning(self, square: Square, labels: Sequence[str]) -> dict[str, tuple[NDArray[np.float32], float]]:
        """For each label its log-odds for a picture and for its copies with a part hidden, and its probability."""
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
        """Write one file; if the process is killed meanwhile, the old file stays.

        If another process has since changed the bank file that this tagger was loaded from or saved to, what was taught
        here is added to that, and nothing is lost. Any other file is replaced. Without `examples` it is a copy to
        share: it contains no pictures or file names, and of their features only the mean for each label, and gives the
        same probabilities, except for pictures that someone said 'no' to. Taught further, it fits its labels to those
        means: better teach the original. Such a copy never replaces a bank that has examples.
        """
        target = Path(path)
        bank_file.refuse_derived(target)
        with self._lock, locked(target):
            if not examples:
                bank_file.refuse_examples(target)
            same = self._saved is not None and self._saved[0] == target.resolve()
            if same and target.exists():
                self._catch_up(target)
            kept = self._bank if examples else bank_file.without_examples(self._bank, self.model)
            bank_file.write_bank(target, kept, self.model, self.thresholds_)
            if examples or same:
                self._note_saved(target, bank_file.read_header(target))

    @classmethod
    def load(
        cls,
        path: StrPath,
        *,
        model: StrPath | Model | None = None,
        words: StrPath | None = None,
        device: str = "auto",
        upgrade: bool = False,
        progress: Progress = None,
    ) -> Self:
        """Load what `save` wrote. `model` is the model's file, if it has moved; `words` is the file of one's own word
        vectors, which only new names need. With `upgrade` a bank of another model is migrated to this one: its
        examples' small copies go through the network again, and `progress` is called with the number of those done."""
        header, bank = bank_file.read_bank(Path(path))
        facts = header["model"]
        if not isinstance(model, Model):
            model = load_model_of(facts, path, model, words=words, device=device)
        if model.fingerprint != facts["fingerprint"]:
            if not upgrade:
                raise _of_another_model(path, header, bank, model)
            bank = stream.migrated(bank, model, facts, path, progress)
        # a bank without copies was meant to have none, whoever teaches it further
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
        """Open the bank at this path, or a new one for it; `save` adds to what other processes may write meanwhile."""
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
        one = is_one(images)
        if not one and any(isinstance(given, set | frozenset) for given in (images, *said[:2])):
            raise InputError("a set has no order by which pictures have their labels; give lists")
        pictures, each_said = several(images), annotations_of(*said, one=one)
        names = sorted(frozenset().union(*(each.labels for each in each_said)))
        known = self._bank.examples
        refused = self._bank.absent_definitions(each_said, names, afresh)
        kept = self._bank.definitions_to_keep(afresh)
        new = by_names([name for name in names if name not in kept], self.model)  # before the work, since it may refuse
        learnt = stream.encode_examples(self.model, pictures, each_said, known, self.keep_pictures, on_error, progress)
        if not afresh:
            stream.warn_of_contradictions(known, learnt)
        with self._lock:
            # known labels too: another process may have forgotten them by the time this is saved
            kept |= self._bank.definitions_to_keep(afresh)
            definitions = {name: kept.get(name) or new[name] for name in names}
            self._do(partial(Bank.learn, definitions={**refused, **definitions}, examples=learnt, afresh=afresh))
        return self

    def _do(self, change: Change) -> None:
        self._bank = change(self._bank)
        if self._saved is not None:
            self._changes.append(change)

    def _catch_up(self, path: Path) -> None:
        """Replays what was taught since the file was read on the bank that is there now, if that has changed."""
        header = bank_file.read_header(path)
        if self._saved == (path.resolve(), header):
            return
        if header["model"]["fingerprint"] != self.model.fingerprint:
            raise InputError(
                f"bank {path} is now one of another model {header['model']['name']!r}; load it again, or save elsewhere"
            )
        self._bank = reduce(lambda bank, change: change(bank), self._changes, bank_file.read_bank(path)[1])

    def _note_saved(self, path: Path, header: dict[str, Any]) -> None:
        self._saved, self._changes = (path.resolve(), header), []

    def scorer(self, threshold: float | None = None, priors: Mapping[str, float] | None = None) -> Scorer:
        """A snapshot of the labels, ready to score; `threshold` replaces each label's own."""
        return Scorer(self._bank, self.model, threshold, priors)


def _of_another_model(path: StrPath, header: Mapping[str, Any], bank: Bank, model: Model) -> InputError:
    """The refusal of a bank whose numbers mean nothing in this model, with the command that moves it there, if it can
    be moved."""
    facts, was = header["model"], "another version of model"
    command, instead = ["fewtag", "upgrade", str(path)], ""
    if (facts["name"], facts["words"]) != (model.name, model.words_name):
        was, instead = "another model", ", or load it with that one"
        command += [] if model.source == facts["source"] else ["--model", model.source]
        command += [] if model.words_source is None else ["--words", model.words_source]
    way = f"to move it to this one: {shlex.join(command)}{' --words FILE' if model.absent_words else ''}"
    if lacking := bank.without_copies:
        every = len(bank.examples)
        way = f"it keeps no copies of {lacking} of its {every} examples to move it by: learn them again into a new bank"
    made = f"{was} {facts['name']!r} (words {facts['words']!r}, fewtag {header['fewtag']})"
    return InputError(f"bank {path} was made with {made}; {way}{instead}")
