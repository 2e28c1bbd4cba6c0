"""Precision, recall, F1 and average precision of tags and probabilities."""

import numpy as np
from numpy.typing import NDArray


def average_precision(scores: NDArray[np.floating], shown: NDArray[np.bool_]) -> float:
    """Area under the precision-recall steps, not interpolated (scikit-learn's); not a number without a positive."""
    positives = int(shown.sum())
    if not positives:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], np.cumsum(shown[order])
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # equal scores are one step
    precision = right[last] / (last + 1)
    recall = right[last] / positives
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def precision_recall_f1(tagged: NDArray[np.bool_], shown: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Of the tags given; not a number where nothing was given, or nothing is shown."""
    right, given, true = int((tagged & shown).sum()), int(tagged.sum()), int(shown.sum())
    precision = right / given if given else float("nan")
    recall = right / true if true else float("nan")
    return precision, recall, 2 * right / (given + true) if given + true else float("nan")
