"""Episode sampling: which images are an episode's support and query.

It handles only row numbers, so that it can be tested without pixels. `EpisodeSampler` gives each label a fixed number
of images of its own; `ReplacingSampler` draws with replacement, `AtLeastSampler` until each label is shown at least a
given number of times, and `HalvesSampler` at the images' own frequencies.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from fewtag.errors import InputError
from fewtag.files import read_json, write_atomically
from fewtag.research.data.images import LabelledImages

_TRIES = 50
_HALVINGS = 10_000


@dataclass(frozen=True, slots=True)
class Draw:
    """An episode before its tensors: the row numbers of its support and query images."""

    support: tuple[int, ...]
    query: tuple[int, ...]
    named: tuple[int, ...] = ()
    """The one label (column) that each support image names; if empty, each names all that it shows."""


@dataclass(eq=False)
class Sampler:
    """Draws episodes over all labels by number: reproducible for a seed, in any order and in any process."""

    targets: Bool[np.ndarray, "images labels"]
    labels: Sequence[str]
    shots: int = field(default=1, kw_only=True)
    queries: int = field(default=4, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        assert self.targets.shape[1] == len(self.labels), "a column for each label"
        for name, least in (("shots", 1), ("queries", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"`{name}` is {getattr(self, name)}; it must be at least {least}")
        self._pools = [np.flatnonzero(column) for column in self.targets.T]
        # sorted by name, so that the order of the columns does not matter
        self._order = sorted(range(len(self.labels)), key=lambda column: self.labels[column])

    def draw(self, index: int) -> Draw:
        """Episode number `index`."""
        raise NotImplementedError

    def _deal(self, chosen: Sequence[np.ndarray]) -> Draw:
        """A draw by label: support[k * shots] shows label k, whatever else it shows."""
        return Draw(
            support=tuple(int(row) for rows in chosen for row in rows[: self.shots]),
            query=tuple(int(row) for rows in chosen for row in rows[self.shots :]),
        )


class EpisodeSampler(Sampler):
    """For each label, `shots` support and `queries` query images that show it, all different."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._wanted = self.shots + self.queries
        self._refuse_impossible()
        # the rarest label chooses first
        self._order.sort(key=lambda column: len(self._pools[column]))

    def draw(self, index: int) -> Draw:
        generator = np.random.default_rng([self.seed, index])
        for _ in range(_TRIES):
            chosen = self._choose(generator)
            if chosen is not None:
                return self._deal(chosen)
        return self._deal(self._match(generator))

    def _choose(self, generator: np.random.Generator) -> list[np.ndarray] | None:
        """Each label in turn takes unused images at random; None if too few are left for one."""
        used = np.zeros(len(self.targets), dtype=bool)
        chosen: list[np.ndarray] = [np.empty(0, dtype=int)] * len(self._pools)
        for column in self._order:
            pool = self._pools[column]
            free = pool[~used[pool]]
            if len(free) < self._wanted:
                return None
            chosen[column] = generator.choice(free, self._wanted, replace=False)
            used[chosen[column]] = True
        return chosen

    def _match(self, generator: np.random.Generator) -> list[np.ndarray]:
        """An exact matching on shuffled data, for requests so tight that random choice keeps failing."""
        rows = generator.permutation(len(self.targets))
        # shuffle in the order of _order, so that the order of the columns does not matter here either
        columns = generator.permutation(self._order)
        owner = assign(self.targets[np.ix_(rows, columns)], self._wanted)
        chosen: list[np.ndarray] = [np.empty(0, dtype=int)] * len(self._pools)
        for place, column in enumerate(columns):
            chosen[column] = generator.permutation(rows[owner == place])
        return chosen

    def _refuse_impossible(self) -> None:
        """Refuses episodes in which not every label can have images of its own, and names the labels that compete."""
        needs = f"{self._wanted} ({self.shots} support + {self.queries} query)"
        for label, pool in zip(self.labels, self._pools, strict=True):
            if len(pool) < self._wanted:
                raise InputError(
                    f"label {label!r} has {len(pool)} images, an episode needs {needs}; "
                    "lower `shots` or `queries`, or drop the label"
                )
        owner = assign(self.targets, self._wanted)
        short = np.flatnonzero(np.bincount(owner[owner >= 0], minlength=len(self.labels)) < self._wanted)
        if not len(short):
            return
        # Hall's theorem: a label that owns an image that a short label shows is short too; repeated until no label is
        # added
        together: set[int] = set()
        following = [int(short[0])]
        while following:
            column = following.pop()
            if column not in together:
                together.add(column)
                following += np.unique(owner[self.targets[:, column]]).tolist()
        names = [repr(self.labels[column]) for column in sorted(together)]
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        images = self.targets[:, sorted(together)].any(axis=1).sum()
        raise InputError(
            f"labels {shown} share {images} images, an episode needs {len(names) * self._wanted} different ones, "
            f"{needs} a label; lower `shots` or `queries`, or drop a label"
        )


class ReplacingSampler(Sampler):
    """Draws with replacement, like the public loader of the paper's authors: an image may occur twice.

    For each label `shots` support and `queries` query images that show it are drawn independently from all of them. So
    a query may be a support image, whose labels are known: a leak, which is why this is only an option of measuring.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for label, pool in zip(self.labels, self._pools, strict=True):
            if not len(pool):
                raise InputError(f"label {label!r} has no image to draw; drop the label")

    def draw(self, index: int) -> Draw:
        generator = np.random.default_rng([self.seed, index])
        drawn = {each: generator.choice(self._pools[each], self.shots + self.queries) for each in self._order}
        return self._deal([drawn[column] for column in range(len(drawn))])


def leaked(draws: Sequence[Draw]) -> float:
    """The share of query images that are support images of their own episode."""
    queries = [row in set(draw.support) for draw in draws for row in draw.query]
    return sum(queries) / max(1, len(queries))


@dataclass(eq=False)
class AtLeastSampler(Sampler):
    """Each label shown by at least `shots` support and `queries` query images, all different.

    The setting of Alfassy et al., LaSO: Label-Set Operations networks for multi-label few-shot learning (CVPR 2019).
    Support and query may come from two parts of a data set. Each draw is for the label shown least so far: that is how
    the authors' code balances its test pictures, and it gives support sets of their size. Unlike there, no picture is
    used twice, and each counts for every label that it shows, whichever it was drawn for.
    """

    support: Sequence[int] | None = field(default=None, kw_only=True)
    query: Sequence[int] | None = field(default=None, kw_only=True)

    def draw(self, index: int) -> Draw:
        everything = range(len(self.targets))
        first, second = (np.array(everything if side is None else side, int) for side in (self.support, self.query))
        # separate generators: the query does not depend on the shots if the two parts share no picture
        support = self._cover(first, self.shots, "support", np.random.default_rng([self.seed, index, 0]))
        rest = second[~np.isin(second, support)]
        query = self._cover(rest, self.queries, "query", np.random.default_rng([self.seed, index, 1]))
        return Draw(support=tuple(support), query=tuple(query))

    def _cover(
        self, rows: Int[np.ndarray, "eligible"], least: int, part: str, generator: np.random.Generator
    ) -> list[int]:
        """Rows drawn one by one for the label shown least so far, until every label is shown often enough."""
        for label, images in zip(self.labels, self.targets[rows].sum(axis=0), strict=True):
            if images < least:
                raise InputError(
                    f"label {label!r} has {images} images for the {part}, which needs at least {least}; "
                    f"lower `{'shots' if part == 'support' else 'queries'}`, or drop the label"
                )
        # ties go to the first in this order, which differs between draws
        order = [int(column) for column in generator.permutation(self._order)]
        waiting = {column: iter(generator.permutation(rows[self.targets[rows, column]])) for column in order}
        shown = np.zeros(len(order), dtype=int)
        drawn: dict[int, None] = {}
        while shown.min(initial=least) < least:
            column = min(order, key=lambda column: shown[column])
            row = next(int(row) for row in waiting[column] if row not in drawn)
            drawn[row] = None
            shown += self.targets[row]
        return list(drawn)


class HalvesSampler(Sampler):
    """Episodes at the images' own frequencies: examples from one half of them, and all of the other half as queries.

    For each label `shots` images of the first half that show it, or all there are; an image counts for all labels that
    it shows. For the same seed and number, more shots add images and leave the queries unchanged.
    """

    def draw(self, index: int) -> Draw:
        first = halve(self.targets, self.labels, [self.seed, index])
        support: dict[int, None] = {}
        for column in self._order:
            # a generator for each label, by its name, so that other labels and their order do not matter
            generator = np.random.default_rng([self.seed, index, *self.labels[column].encode()])
            pool = np.flatnonzero(first & self.targets[:, column])
            support |= dict.fromkeys(generator.permutation(pool)[: self.shots].tolist())
        return Draw(support=tuple(support), query=tuple(np.flatnonzero(~first).tolist()))


SAMPLERS: dict[str, type[Sampler]] = {
    "per-label": EpisodeSampler,
    "with-replacement": ReplacingSampler,
    "at-least": AtLeastSampler,
    "halves": HalvesSampler,
}


def halve(
    targets: Bool[np.ndarray, "images labels"], labels: Sequence[str], seed: Sequence[int]
) -> Bool[np.ndarray, "images"]:
    """Which images are in the first of two random halves, each of which shows every label."""
    for label, images in zip(labels, targets.sum(axis=0), strict=True):
        if images < 2:
            raise InputError(f"label {label!r} has {images} images, and each half needs one; drop the label")
    generator = np.random.default_rng(seed)
    for _ in range(_HALVINGS):
        first = generator.permutation(len(targets)) < len(targets) // 2
        if targets[first].any(axis=0).all() and targets[~first].any(axis=0).all():
            return first
    raise InputError(f"no two halves of {len(targets)} images show every label; drop a label that few images show")


def assign(targets: Bool[np.ndarray, "images labels"], wanted: int) -> Int[np.ndarray, "images"]:
    """Maximum flow: assigns each image to a label that it shows, or to none (-1); labels get up to `wanted` images."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    images, labels = targets.shape
    row, column = np.nonzero(targets)
    source, sink = labels + images, labels + images + 1
    # source → labels (wanted each) → images → sink (1 each)
    tail = np.concatenate([np.full(labels, source), column, labels + np.arange(images)])
    head = np.concatenate([np.arange(labels), labels + row, np.full(images, sink)])
    capacity = np.concatenate([np.full(labels, wanted), np.ones(len(row) + images, dtype=int)])
    graph = csr_array((capacity.astype(np.int32), (tail, head)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(graph, source, sink).flow.tocoo()
    taken = (flow.data > 0) & (flow.row < labels)
    owner = np.full(images, -1)
    owner[flow.col[taken] - labels] = flow.row[taken]
    return owner


_FORMAT = 1


def save_draws(
    path: Path,
    draws: Sequence[Draw],
    images: LabelledImages,
    *,
    split: str,
    phase: str,
    shots: int,
    queries: int,
    seed: int,
    sampling: str = "per-label",
) -> None:
    """Write the draws as JSON, a line each; readers see the old file or the new one, never a part."""
    header = {"format": _FORMAT, "data": images.digest, "split": split, "phase": phase, "sampling": sampling}
    header |= {"shots": shots, "queries": queries, "seed": seed}
    named = [
        {side: [images.ids[row] for row in getattr(draw, side)] for side in ("support", "query")} for draw in draws
    ]
    text = json.dumps(header)[:-1] + ', "draws": [\n' + ",\n".join(map(json.dumps, named)) + "\n]}\n"
    write_atomically(path, text.encode())


def load_draws(path: Path, images: LabelledImages, sampling: str = "per-label") -> list[Draw]:
    """Read draws of this very data set, made by this sampling; others are refused."""
    content = read_json(path, "file of draws")
    if not isinstance(content, dict) or not isinstance(content.get("draws"), list):
        raise InputError(f'{path} is no file of draws: it has no list "draws"; check the path')
    if content.get("format") != _FORMAT:
        raise InputError(f"the draws {path} have format {content.get('format')!r}, known is {_FORMAT}; draw again")
    if content.get("data") != images.digest:
        raise InputError(
            f"the draws {path} are of another data set (its digest is {content.get('data')!r}, this one's "
            f"{images.digest!r}); load the data set, split and phase they were drawn from, or draw again"
        )
    if (made_by := content.get("sampling", "per-label")) != sampling:
        raise InputError(f"the draws {path} are by sampling {made_by!r}, not {sampling!r}; name other draws or none")
    again = sampling == "with-replacement"
    return [_draw(f"draw {number} of {path}", raw, images, again) for number, raw in enumerate(content["draws"])]


def _draw(name: str, raw: Any, images: LabelledImages, again: bool) -> Draw:
    sides: list[list[str]] = []
    for key in ("support", "query"):
        ids = raw.get(key) if isinstance(raw, dict) else None
        if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
            raise InputError(f"{name} has no list of ids {key!r}; draw again")
        sides.append(ids)
    twice = [image for image, times in Counter([*sides[0], *sides[1]]).items() if times > 1]
    if twice and not again:
        raise InputError(f"{name} uses image {twice[0]!r} twice; draw again")
    try:
        return Draw(*(tuple(images.rows(ids)) for ids in sides))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
