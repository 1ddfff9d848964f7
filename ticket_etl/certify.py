"""Certification: labels of a low-precision run made those of float32, at little more than low-precision cost.

Low precision drifts, and a label can flip only where the drift exceeds the margin. So, for every window:

    sample     a seeded sample over all lengths is scored in float32
    drift      one half of it says how far label log-odds move
    bound      that drift's maximum, times a safety factor
    re-score   every ticket whose margin is under the bound is scored in float32
    verify     the other half, which the bound has not seen, is held against the outcome; a disagreement doubles the
               bound and goes back to `re-score`

If none of n verified tickets disagrees, the rate of disagreement left is at most 3/n with 95% confidence (the rule of
three; Hanley and Lippman-Hand 1983, JAMA 249:1743).
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ticket_etl.network import FloatArray
from ticket_etl.prompt import TokenIds
from ticket_etl.sampling import stratified_sample

log = logging.getLogger("ticket_etl")

BoolArray = npt.NDArray[np.bool_]
ExactScores = Callable[[Sequence[TokenIds]], FloatArray]
"""Label log-probabilities in float32: float32, shape (tickets, labels)."""

_SAMPLE_SHARE = 0.05
_SAMPLE_LEAST = 64
_SAFETY = 1.5


@dataclass
class CertificationCount:
    """What certification did in a run; drifts are in log-odds."""

    sampled: int = 0
    drifts: list[float] = field(default_factory=list)
    bound: float = 0.0
    rescored: int = 0
    changed: int = 0
    verified: int = 0
    disagreements: int = 0

    def summary(self) -> dict[str, float | int | None]:
        """The figures of the report."""
        p50, p90, p99, largest = np.quantile(self.drifts, [0.5, 0.9, 0.99, 1.0]).tolist() if self.drifts else [None] * 4
        return {
            "sampled": self.sampled,
            "drift_median": p50,
            "drift_p90": p90,
            "drift_p99": p99,
            "drift_max": largest,
            "bound": self.bound,
            "rescored": self.rescored,
            "labels_changed": self.changed,
            "verified": self.verified,
            "disagreements_before_the_bound_grew": self.disagreements,
            "remaining_disagreement_rate_95": min(1.0, 3.0 / self.verified) if self.verified else None,
        }


class Certifier:
    """Certifies windows.

    Args:
        exact: the float32 scorer.
        seed: of the samples.
    """

    def __init__(self, exact: ExactScores, seed: int) -> None:
        self._exact = exact
        self._seed = seed
        self.count = CertificationCount()

    def certify(self, log_probs: FloatArray, tickets: Sequence[TokenIds]) -> FloatArray:
        """Log-probabilities, shape (tickets, labels), with float32 rows wherever a label could flip."""
        certified = log_probs.copy()
        exact = np.zeros(len(tickets), dtype=np.bool_)

        def score(places: npt.NDArray[np.int64]) -> None:
            if len(places):
                certified[places] = self._exact([tickets[place] for place in places.tolist()])
                exact[places] = True

        wanted = max(_SAMPLE_LEAST, round(_SAMPLE_SHARE * len(tickets)))
        sample = np.array(stratified_sample([len(ids) for ids in tickets], wanted, self._seed), dtype=np.int64)
        score(sample)
        # Alternate by length, so that both halves cover all lengths.
        by_length = sample[np.argsort([len(tickets[place]) for place in sample.tolist()], kind="stable")]
        measured, verified = by_length[::2], by_length[1::2]
        drifts = drift(log_probs[measured], certified[measured])
        bound = _SAFETY * float(drifts.max(initial=0.0))
        disagree = certified[verified].argmax(axis=1) != log_probs[verified].argmax(axis=1)
        while (disagree & (margins(log_probs[verified]) >= bound)).any():
            self.count.disagreements += 1
            bound *= 2.0
        rescored = np.flatnonzero((margins(log_probs) < bound) & ~exact)
        score(rescored)
        self.count.sampled += len(sample)
        self.count.drifts += drifts.tolist()
        self.count.bound = max(self.count.bound, bound)
        self.count.rescored += len(rescored)
        self.count.changed += int((certified.argmax(axis=1) != log_probs.argmax(axis=1)).sum())
        self.count.verified += len(verified)
        return certified


def drift(low: FloatArray, exact: FloatArray) -> npt.NDArray[np.float64]:
    """How far low precision moved the log-odds between a ticket's label and any other: float64, shape (tickets,).

    >>> drift(np.log(np.array([[0.5, 0.5]], np.float32)), np.log(np.array([[0.6, 0.4]], np.float32))).round(3)
    array([0.405])
    """
    best = low.argmax(axis=1)[:, None]
    moved = (low - exact).astype(np.float64)
    return np.abs(np.take_along_axis(moved, best, axis=1) - moved).max(axis=1, initial=0.0)


def margins(log_probs: FloatArray) -> FloatArray:
    """Log-odds of each label to its runner-up: float32, shape (tickets,); NaN, which is never safe, becomes -1."""
    second, first = np.partition(log_probs, -2, axis=1)[:, -2:].T
    return np.nan_to_num(first - second, nan=-1.0, posinf=np.inf)
