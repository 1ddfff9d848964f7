"""How good labels are, measured against gold labels: accuracy, F1, calibration, and accuracy against coverage.

Arrays in, plain values out (what goes into JSON), nothing read or printed. Labels and gold labels are indices into one
list of names. What scikit-learn measures is measured by scikit-learn, which is in the extra `fit`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import precision_recall_fscore_support

from ticket_etl.tally import SCORE_EDGES

RESAMPLES = 1_000
LEVEL = 0.95
"""Of the bootstrap: how many resamples, and the level of its percentile intervals (B. Efron, 1979)."""

KEPT_SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Shares of the labelled tickets, the most certain ones first, for which accuracy is told."""

Indices = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def label_metrics(gold: Indices, given: Indices, names: Sequence[str], seed: int) -> dict[str, Any]:
    """Accuracy, macro-F1 and the figures of each label, with bootstrap intervals, and the confusion matrix.

    Macro-F1 is the mean F1 of the labels that occur in gold: one that is never given counts with 0, one that is given
    but not in gold does not count. Precision of a label that is never given, and recall of one that is not in gold, are
    None. Labels come by how often they are in gold.

    Args:
        gold: int32, shape (tickets,), indices into `names`, of the gold labels; at least one ticket.
        given: int32, shape (tickets,), likewise, of the labels that the tickets got.
        names: every label that occurs in one or the other.
        seed: of the resamples.
    """
    every = np.arange(len(names))
    size = len(names)
    confusion = np.bincount(gold.astype(np.int64) * size + given, minlength=size * size).reshape(size, size)
    precision, recall, f1, support = precision_recall_fscore_support(
        gold, given, labels=every, average=None, zero_division=np.nan
    )
    accuracies, macros, f1s = resample(confusion, seed)
    times_given = confusion.sum(axis=0)
    order = sorted(every.tolist(), key=lambda at: (-support[at], names[at]))
    return {
        "accuracy": _estimate(np.trace(confusion) / len(gold), accuracies),
        "macro_f1": _estimate(f1[support > 0].mean(), macros) | {"labels": int((support > 0).sum())},
        "labels": [
            {
                "label": names[at],
                "support": int(support[at]),
                "given": int(times_given[at]),
                "precision": _number(precision[at]),
                "recall": _number(recall[at]),
                "f1": _estimate(f1[at], f1s[:, at]),
            }
            for at in order
        ],
        "confusion": {
            "labels": [names[at] for at in order],
            "counts": confusion[np.ix_(order, order)].tolist(),
        },
    }


def resample(confusion: Counts, seed: int, resamples: int = RESAMPLES) -> tuple[Doubles, Doubles, Doubles]:
    """Accuracy, macro-F1 and each label's F1 of bootstrap resamples of the tickets.

    Tickets that share gold label and label are alike, so drawing tickets with replacement is drawing the cells of the
    confusion matrix from a multinomial, which takes no longer for a million tickets than for a hundred. Macro-F1 is
    over the labels that occur in the resample's gold; F1 of a label that does not occur at all is NaN.

    Args:
        confusion: int64, shape (labels, labels): tickets by gold label (row) and label (column).

    Returns:
        float64 of shapes (resamples,), (resamples,) and (resamples, labels).
    """
    random = np.random.default_rng(seed)
    rows, columns = np.nonzero(confusion)
    cells = confusion[rows, columns]
    tickets, labels = int(cells.sum()), len(confusion)
    accuracies, macros, f1s = np.empty(resamples), np.empty(resamples), np.empty((resamples, labels))
    for at in range(resamples):
        drawn = random.multinomial(tickets, cells / tickets)
        right = np.bincount(rows, drawn * (rows == columns), labels)
        support, given = np.bincount(rows, drawn, labels), np.bincount(columns, drawn, labels)
        f1s[at] = np.divide(2 * right, support + given, where=support + given > 0, out=np.full(labels, np.nan))
        accuracies[at], macros[at] = right.sum() / tickets, f1s[at, support > 0].mean()
    return accuracies, macros, f1s


def calibration(scores: Floats, correct: Flags, seed: int) -> dict[str, Any]:
    """Expected calibration error, and the reliability table that it is made of.

    The error is the mean distance of accuracy from mean score over equal bins of the score, weighted by tickets
    (M. P. Naeini et al., 2015; C. Guo et al., On calibration of modern neural networks, 2017).

    Args:
        scores: float32, shape (tickets,): probabilities of the labels given.
        correct: bool, shape (tickets,): whether they are the gold labels.
    """
    random = np.random.default_rng(seed)
    edges = SCORE_EDGES.round(3)
    bin_of = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, len(edges) - 2)
    bins = []
    error = 0.0
    for at in range(len(edges) - 1):
        inside = bin_of == at
        count = int(inside.sum())
        row: dict[str, Any] = {"from": float(edges[at]), "to": float(edges[at + 1]), "tickets": count}
        if not count:
            bins.append(row | {"mean_score": None, "accuracy": None})
            continue
        mean_score = float(scores[inside].mean(dtype=np.float64))
        accuracy = share_right(int(correct[inside].sum()), count, random)
        error += count / len(scores) * abs(accuracy["value"] - mean_score)
        bins.append(row | {"mean_score": mean_score, "accuracy": accuracy})
    return {"expected_calibration_error": error, "bins": bins}


def coverage(certainty: Floats, correct: Flags, tickets: int, seed: int) -> list[dict[str, Any]]:
    """Accuracy of the labels that stand if those below a threshold do not, for thresholds that keep ever fewer.

    A threshold keeps what reaches it, as --min-score and --min-margin do; of equal values all are kept.

    Args:
        certainty: float32, shape (labelled,): scores or margins.
        correct: bool, shape (labelled,).
        tickets: all that have a gold label; coverage is the share of them that keeps a label.
    """
    random = np.random.default_rng(seed)
    descending = np.argsort(-certainty, kind="stable")
    values, right = certainty[descending], correct[descending].cumsum()
    curve: dict[float, dict[str, Any]] = {}
    for share in KEPT_SHARES:
        threshold = values[int(np.ceil(share * len(values))) - 1]
        kept = int(np.searchsorted(-values, -threshold, side="right"))
        shortest = float(str(threshold))  # the decimal that is this float32
        curve.setdefault(
            shortest,
            {
                "threshold": shortest,
                "labelled": kept,
                "coverage": kept / tickets,
                "accuracy": share_right(int(right[kept - 1]), kept, random),
            },
        )
    return list(curve.values())


def share_right(right: int, tickets: int, random: np.random.Generator) -> dict[str, float]:
    """The share of right labels with its bootstrap interval: a resample's number of right ones is binomial."""
    return _estimate(right / tickets, random.binomial(tickets, right / tickets, RESAMPLES) / tickets)


def _estimate(value: float, resampled: Doubles) -> dict[str, float]:
    low, high = np.nanpercentile(resampled, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return {"value": float(value), "low": float(low), "high": float(high)}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
