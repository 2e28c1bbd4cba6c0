"""Exact answers to whether, and how, every label can have its own images."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow


@dataclass(frozen=True)
class Shortage:
    """Labels (columns) that together need more images than show any of them (Hall's theorem)."""

    labels: tuple[int, ...]
    images: int


def assign(targets: Bool[np.ndarray, "images labels"], wanted: int) -> Int[np.ndarray, "images"]:
    """Give each image to one label it shows, or to none (-1), so that as many of `wanted` a label are met as can be."""
    images, labels = targets.shape
    row, column = np.nonzero(targets)
    source, sink = labels + images, labels + images + 1
    # source → labels (wanted each) → images → sink (1 each)
    tail = np.concatenate([np.full(labels, source), column, labels + np.arange(images)])
    head = np.concatenate([np.arange(labels), labels + row, np.full(images, sink)])
    room = np.concatenate([np.full(labels, wanted), np.ones(len(row) + images, dtype=int)])
    graph = csr_array((room.astype(np.int32), (tail, head)), shape=(sink + 1, sink + 1))
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
