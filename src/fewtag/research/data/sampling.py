"""Episode sampling: which images are an episode's support and query.

Row numbers only, so that no pixel is needed to test it. `EpisodeSampler` gives each label so many images of its own;
`ReplacingSampler` draws with replacement, `AtLeastSampler` until each label is shown at least so often.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The one label (column) that each support image names; all that it shows, where nothing is said."""


def check_counts(shots: int, queries: int, seed: int) -> None:
    """Refuses numbers that no episode could be drawn with."""
    for name, value, least in (("shots", shots, 1), ("queries", queries, 0), ("seed", seed, 0)):
        if value < least:
            raise InputError(f"`{name}` is {value}; it must be at least {least}")


class EpisodeSampler:
    """Episodes over all labels: for each, `shots` support and `queries` query images that show it, all different."""

    def __init__(
        self,
        targets: Bool[np.ndarray, "images labels"],
        labels: Sequence[str],
        *,
        shots: int = 1,
        queries: int = 4,
        seed: int = 0,
    ) -> None:
        assert targets.shape[1] == len(labels), "a column for each label"
        check_counts(shots, queries, seed)
        self.shots, self.queries, self.seed = shots, queries, seed
        self._targets = targets
        self._wanted = shots + queries
        self._pools = [np.flatnonzero(targets[:, column]) for column in range(len(labels))]
        _refuse_impossible(targets, labels, self._pools, shots, queries)
        # the rarest label chooses first; ties by name, so that the order of the columns does not matter
        self._order = sorted(range(len(labels)), key=lambda column: (len(self._pools[column]), labels[column]))

    def draw(self, index: int) -> Draw:
        """Episode number `index`: the same for the same seed, in any order and in any process."""
        generator = np.random.default_rng([self.seed, index])
        for _ in range(_TRIES):
            chosen = self._choose(generator)
            if chosen is not None:
                break
        else:
            chosen = self._match(generator)
        # label by label: support[k * shots] shows label k, whatever else it shows
        return Draw(
            support=tuple(int(row) for rows in chosen for row in rows[: self.shots]),
            query=tuple(int(row) for rows in chosen for row in rows[self.shots :]),
        )

    def _choose(self, generator: np.random.Generator) -> list[np.ndarray] | None:
        """Each label in turn takes unused images at random; None where one finds too few left."""
        used = np.zeros(len(self._targets), dtype=bool)
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
        """An exact matching of a shuffled data set, for requests so tight that chance keeps missing."""
        rows = generator.permutation(len(self._targets))
        # shuffle in the order of _order, so that the order of the columns does not matter here either
        columns = generator.permutation(self._order)
        owner = assign(self._targets[np.ix_(rows, columns)], self._wanted)
        chosen: list[np.ndarray] = [np.empty(0, dtype=int)] * len(self._pools)
        for place, column in enumerate(columns):
            chosen[column] = generator.permutation(rows[owner == place])
        return chosen


def _refuse_impossible(
    targets: Bool[np.ndarray, "images labels"],
    labels: Sequence[str],
    pools: Sequence[np.ndarray],
    shots: int,
    queries: int,
) -> None:
    wanted = shots + queries
    needs = f"{wanted} ({shots} support + {queries} query)"
    for label, pool in zip(labels, pools, strict=True):
        if len(pool) < wanted:
            raise InputError(
                f"label {label!r} has {len(pool)} images, an episode needs {needs}; "
                "lower `shots` or `queries`, or drop the label"
            )
    short = shortage(targets, wanted)
    if short is not None:
        names = [labels[column] for column in short.labels]
        shown = ", ".join(repr(name) for name in names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        raise InputError(
            f"labels {shown} share {short.images} images, an episode needs {len(names) * wanted} different ones, "
            f"{needs} a label; lower `shots` or `queries`, or drop a label"
        )


class ReplacingSampler:
    """Episodes drawn with replacement, as the paper's authors' public loader draws them: an image may come twice.

    For each label `shots` support and `queries` query images that show it, each drawn from all of them. So a query may
    be a support image, with its labels known: a leak, which is why this is an option of measuring alone.
    """

    def __init__(
        self,
        targets: Bool[np.ndarray, "images labels"],
        labels: Sequence[str],
        *,
        shots: int = 1,
        queries: int = 4,
        seed: int = 0,
    ) -> None:
        assert targets.shape[1] == len(labels), "a column for each label"
        check_counts(shots, queries, seed)
        self.shots, self.queries, self.seed = shots, queries, seed
        self._pools = [np.flatnonzero(column) for column in targets.T]
        for label, pool in zip(labels, self._pools, strict=True):
            if not len(pool):
                raise InputError(f"label {label!r} has no image to draw; drop the label")
        self._order = sorted(range(len(labels)), key=lambda column: labels[column])

    def draw(self, index: int) -> Draw:
        """Episode number `index`: the same for the same seed, in any order and in any process."""
        generator = np.random.default_rng([self.seed, index])
        wanted = self.shots + self.queries
        drawn = {column: generator.choice(self._pools[column], wanted).tolist() for column in self._order}
        return Draw(
            support=tuple(row for column in range(len(drawn)) for row in drawn[column][: self.shots]),
            query=tuple(row for column in range(len(drawn)) for row in drawn[column][self.shots :]),
        )


def leaked(draws: Sequence[Draw]) -> float:
    """The share of query images that are support images of their own episode."""
    queries = [row in set(draw.support) for draw in draws for row in draw.query]
    return sum(queries) / max(1, len(queries))


class AtLeastSampler:
    """Episodes over all labels: each shown by at least `shots` support and `queries` query images, all different.

    The setting of Alfassy et al., LaSO: Label-Set Operations networks for multi-label few-shot learning (CVPR 2019).
    Support and query may come from two parts of a data set. The label that was shown least so far has its turn: that is
    how their code balances its test pictures, and it gives support sets of their size. Unlike there, no picture is used
    twice, and it counts for every label that it shows, whichever it was drawn for.
    """

    def __init__(
        self,
        targets: Bool[np.ndarray, "images labels"],
        labels: Sequence[str],
        *,
        support: Sequence[int] | None = None,
        query: Sequence[int] | None = None,
        shots: int = 1,
        queries: int = 4,
        seed: int = 0,
    ) -> None:
        assert targets.shape[1] == len(labels), "a column for each label"
        check_counts(shots, queries, seed)
        self.shots, self.queries, self.seed = shots, queries, seed
        self._targets = targets
        # by name, so that the order of the columns does not matter
        self._order = sorted(range(len(labels)), key=lambda column: labels[column])
        self._labels = labels
        everything = range(len(targets))
        self._support = np.array(everything if support is None else support, dtype=int)
        self._query = np.array(everything if query is None else query, dtype=int)

    def draw(self, index: int) -> Draw:
        """Episode number `index`: the same for the same seed, in any order and in any process."""
        # a generator each: the query does not depend on the shots where the two parts share no picture
        support = self._cover(self._support, self.shots, "support", np.random.default_rng([self.seed, index, 0]))
        rest = self._query[~np.isin(self._query, support)]
        query = self._cover(rest, self.queries, "query", np.random.default_rng([self.seed, index, 1]))
        return Draw(support=tuple(support), query=tuple(query))

    def _cover(
        self, rows: Int[np.ndarray, "eligible"], least: int, part: str, generator: np.random.Generator
    ) -> list[int]:
        """Rows drawn one by one for the label shown least so far, until every label is shown often enough."""
        self._refuse_rare(rows, least, part)
        # the first of equals has its turn first: another one in each draw
        order = [int(column) for column in generator.permutation(self._order)]
        waiting = {column: iter(generator.permutation(rows[self._targets[rows, column]])) for column in order}
        shown = np.zeros(len(order), dtype=int)
        drawn: dict[int, None] = {}
        while shown.min(initial=least) < least:
            column = min(order, key=lambda column: shown[column])
            row = next(int(row) for row in waiting[column] if row not in drawn)
            drawn[row] = None
            shown += self._targets[row]
        return list(drawn)

    def _refuse_rare(self, rows: Int[np.ndarray, "eligible"], least: int, part: str) -> None:
        for label, images in zip(self._labels, self._targets[rows].sum(axis=0), strict=True):
            if images < least:
                raise InputError(
                    f"label {label!r} has {images} images for the {part}, which needs at least {least}; "
                    f"lower `{'shots' if part == 'support' else 'queries'}`, or drop the label"
                )


class HalvesSampler:
    """Episodes at the images' own frequencies: examples from one half of them, all of the other half as queries.

    For each label `shots` images of the first half that show it, or all there are; an image counts for all that it
    shows. More shots of one seed and number add images and leave the queries as they are.
    """

    def __init__(
        self, targets: Bool[np.ndarray, "images labels"], labels: Sequence[str], *, shots: int = 1, seed: int = 0
    ) -> None:
        self._targets, self._labels, self.shots, self.seed = targets, labels, shots, seed

    def draw(self, index: int) -> Draw:
        """Episode number `index`: the same for the same seed, in any order and in any process."""
        first = halve(self._targets, self._labels, [self.seed, index])
        support: dict[int, None] = {}
        for label, shown in sorted(zip(self._labels, self._targets.T, strict=True), key=lambda column: column[0]):
            # a generator for each label, by its name: what other labels take does not matter, nor does their order
            generator = np.random.default_rng([self.seed, index, *label.encode()])
            support |= dict.fromkeys(generator.permutation(np.flatnonzero(first & shown))[: self.shots].tolist())
        return Draw(support=tuple(support), query=tuple(np.flatnonzero(~first).tolist()))


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


@dataclass(frozen=True)
class Shortage:
    """Labels (columns) that together need more images than show any of them (Hall's theorem)."""

    labels: tuple[int, ...]
    images: int


def assign(targets: Bool[np.ndarray, "images labels"], wanted: int) -> Int[np.ndarray, "images"]:
    """Maximum flow: each image to one label it shows, or to none (-1), so that labels get `wanted` as far as can be."""
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


def shortage(targets: Bool[np.ndarray, "images labels"], wanted: int) -> Shortage | None:
    """The labels that stand in each other's way, or None if every label can have `wanted` images of its own."""
    owner = assign(targets, wanted)
    given = np.bincount(owner[owner >= 0], minlength=targets.shape[1])
    short = np.flatnonzero(given < wanted)
    if not len(short):
        return None
    # whoever holds an image that a short label shows is short too: follow until nobody new comes
    labels: set[int] = set()
    following = [int(short[0])]
    while following:
        label = following.pop()
        if label not in labels:
            labels.add(label)
            following += [int(other) for other in np.unique(owner[targets[:, label]])]
    return Shortage(tuple(sorted(labels)), int(targets[:, sorted(labels)].any(axis=1).sum()))


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
    header: dict[str, Any] = {
        "format": _FORMAT,
        "data": images.digest,
        "split": split,
        "phase": phase,
        "sampling": sampling,
        "shots": shots,
        "queries": queries,
        "seed": seed,
    }
    lines = [json.dumps({"support": _ids(images, draw.support), "query": _ids(images, draw.query)}) for draw in draws]
    text = json.dumps(header)[:-1] + ', "draws": [\n' + ",\n".join(lines) + "\n]}\n"
    write_atomically(path, text.encode())


def load_draws(path: Path, images: LabelledImages) -> list[Draw]:
    """Read draws of this very data set; those of another are refused."""
    content = _content(path)
    if content.get("data") != images.digest:
        raise InputError(
            f"the draws {path} are of another data set (its digest is {content.get('data')!r}, this one's "
            f"{images.digest!r}); load the data set, split and phase they were drawn from, or draw again"
        )
    return [_draw(path, number, raw, images) for number, raw in enumerate(content["draws"])]


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path, "file of draws")
    if not isinstance(content, dict) or not isinstance(content.get("draws"), list):
        raise InputError(f'{path} is no file of draws: it has no list "draws"; check the path')
    if content.get("format") != _FORMAT:
        raise InputError(f"the draws {path} have format {content.get('format')!r}, known is {_FORMAT}; draw again")
    return content


def _ids(images: LabelledImages, rows: Sequence[int]) -> list[str]:
    return [images.ids[row] for row in rows]


def _draw(path: Path, number: int, raw: Any, images: LabelledImages) -> Draw:
    support, query = (_names(path, number, raw, key) for key in ("support", "query"))
    twice = [name for name, times in Counter(support + query).items() if times > 1]
    if twice:
        raise InputError(f"draw {number} of {path} uses image {twice[0]!r} twice; draw again")
    try:
        return Draw(support=tuple(images.rows(support)), query=tuple(images.rows(query)))
    except InputError as error:
        raise InputError(f"draw {number} of {path}: {error}") from error


def _names(path: Path, number: int, raw: Any, key: str) -> list[str]:
    names = raw.get(key) if isinstance(raw, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"draw {number} of {path} has no list of ids {key!r}; draw again")
    return names
