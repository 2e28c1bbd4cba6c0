"""Writes the word vectors of COCO's 80 labels and of ImageNet's 1,000 classes, for `tune_network.py --names`.

    python scripts/name_vectors.py --out names.npz

A class's vector is the mean of its first three synonyms'. `known` marks classes with a vector, `clean` those that are
not, do not contain and are no kind of a validation or novel label of the COCO split; OVERLAPS says why, class by class.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from timm.data import ImageNetInfo

from fewtag.research.data.splits import Split
from fewtag.words.vectors import SHIPPED, WordTable, load_words

SYNONYMS = 3

OVERLAPS: dict[str, tuple[str, tuple[int, ...]]] = {
    "bird": ("a kind of it", (*range(7, 25), *range(80, 101), *range(127, 147))),
    "boat": (
        "a kind of it, a ship, or its gear and berth",
        (403, 449, 472, 484, 510, 536, 554, 576, 625, 628, 693, 724, 780, 814, 833, 871, 913, 914),
    ),
    "bicycle": ("a kind of it", (444, 671, 870, 880)),
    "stop sign": ("street signs contain it", (919,)),
    "backpack": ("the same", (414,)),
    "cup": ("a kind of it, or served in one", (504, 572, 647, 967, 968)),
    "spoon": ("a kind of it", (618, 813, 910)),
    "broccoli": ("the same", (937,)),
    "chair": ("a kind of it", (423, 559, 765, 857)),
    "keyboard": ("a kind or part of it, or has one", (508, 527, 681, 620, 810, 878)),
    "microwave": ("the same", (651,)),
    "vase": ("the same, or a vessel like it", (883, 725)),
    "person": ("a kind of it", (981, 982, 983)),
    "cow": ("cattle", (345, 346, 347)),
    "bear": ("a kind of it", (294, 295, 296, 297)),
    "zebra": ("the same", (340,)),
    "skis": ("the same", (795,)),
    "baseball bat": ("its game", (429,)),
    "sandwich": ("a kind of it", (933,)),
    "bed": ("a kind of it", (431, 516, 520, 564, 831)),
    "dining table": ("the same", (532,)),
    "toaster": ("the same", (859,)),
    "teddy bear": ("the same", (850,)),
}
"""ImageNet classes that overlap a validation or novel label: the label, why, and the classes' numbers."""


def class_vectors(descriptions: Sequence[str], words: WordTable) -> list[np.ndarray | None]:
    """The mean of each class's first synonyms that have a vector; None if there is none."""
    known = [[name for name in text.split(", ")[:SYNONYMS] if name in words] for text in descriptions]
    return [words.vectors(synonyms).mean(axis=0) if synonyms else None for synonyms in known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", default=SHIPPED, help="the shipped table, or a file")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    words = load_words(arguments.words)
    split = Split.load("coco")
    classes = [ImageNetInfo("imagenet-1k").index_to_description(number) for number in range(1000)]
    vectors = class_vectors(classes, words)
    overlapping = sorted(number for _, numbers in OVERLAPS.values() for number in numbers)
    clean = np.ones(len(classes), dtype=bool)
    clean[overlapping] = False
    np.savez(
        arguments.out,
        labels=np.array(split.labels),
        words=words.vectors([split.words(label) for label in split.labels]),
        classes=np.array(classes),
        class_words=np.stack([np.zeros(words.dimensions) if vector is None else vector for vector in vectors]),
        known=np.array([vector is not None for vector in vectors]),
        clean=clean,
    )
    for label, (reason, numbers) in OVERLAPS.items():
        print(f"{label} ({reason}): " + "; ".join(classes[number].split(",")[0] for number in numbers))
    known = sum(vector is not None for vector in vectors)
    print(f"{len(split.labels)} labels; {known} of {len(classes)} classes are known")
    print(f"{len(overlapping)} classes overlap a validation or novel label")


if __name__ == "__main__":
    main()
