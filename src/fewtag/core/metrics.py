"""Precision, recall, F1 and average precision of tags and probabilities."""

import numpy as np
from numpy.typing import NDArray


def average_precision(scores: NDArray[np.floating], shown: NDArray[np.bool_]) -> float:
    """Area under the precision-recall steps, not interpolated (scikit-learn's); NaN without a positive."""
    return float(average_precisions(scores[None], shown[None])[0])


def average_precisions(scores: NDArray[np.floating], shown: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The average precision of each row of scores (rows × ranked)."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranked, right = np.take_along_axis(scores, order, 1), np.cumsum(np.take_along_axis(shown, order, 1), axis=1)
    last = np.ones(ranked.shape, bool)
    last[:, :-1] = ranked[:, 1:] != ranked[:, :-1]  # equal scores form one step
    reached = np.maximum.accumulate(right * last, axis=1)
    gained = np.diff(reached, axis=1, prepend=0)  # true positives gained, counted at the last of equal scores
    precision = right / np.arange(1, right.shape[1] + 1)
    with np.errstate(invalid="ignore"):
        return (gained * precision).sum(axis=1) / shown.sum(axis=1)


def precision_recall_f1(tagged: NDArray[np.bool_], shown: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Precision, recall and F1 of the tags given; NaN where nothing was given or nothing is shown."""
    right, given, true = int((tagged & shown).sum()), int(tagged.sum()), int(shown.sum())
    precision = right / given if given else float("nan")
    recall = right / true if true else float("nan")
    return precision, recall, 2 * right / (given + true) if given + true else float("nan")
