"""Data sets made of data sets."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fewtag.errors import InputError
from fewtag.research.data.images import LabelledImages, from_shown


def concatenate(parts: Sequence[LabelledImages]) -> LabelledImages:
    """The images of all parts, over the labels of all parts."""
    if len(parts) == 1:
        return parts[0]
    labels = list(dict.fromkeys(label for part in parts for label in part.labels))
    found = [(part.ids[row], part.pictures[row], set(part.shown(row))) for part in parts for row in range(len(part))]
    return from_shown(found, labels)


def readable(images: LabelledImages) -> tuple[LabelledImages, list[str]]:
    """The images that can be decoded, and the reasons why the others cannot. Decodes every one."""

    def reason(row: int) -> str | None:
        try:
            images.pictures[row].open()
        except InputError as error:
            return str(error)
        return None

    # as many threads as cores that this process may use
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        reasons = list(pool.map(reason, range(len(images))))
    good = [row for row, why in enumerate(reasons) if why is None]
    return images.select(good), [why for why in reasons if why is not None]


def refuse_unreadable(images: LabelledImages) -> None:
    """Refuses pictures that cannot be decoded, before hours of training find out."""
    _, reasons = readable(images)
    if reasons:
        more = f" ({len(reasons)} such pictures; --skip-bad leaves them out)"
        raise InputError(reasons[0] + more)
