"""Episodes in which every label is shown *at least* so often, whichever label a picture was drawn for.

The setting of Alfassy et al., LaSO: Label-Set Operations networks for multi-label few-shot learning (CVPR 2019).
Support and query may come from two parts of a data set. The label that was shown least so far has its turn: that is how
their code balances its test pictures, and it gives support sets of their size. Unlike there, no picture is used twice.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int

from fewtag.errors import InputError
from fewtag.research.data.episodes import Draw, check_counts


class AtLeastSampler:
    """Episodes over all labels: each shown by at least `shots` support and `queries` query images, all different."""

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
