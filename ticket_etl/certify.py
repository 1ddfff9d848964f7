"""Certification: labels of a low-precision run made those of float32, at little more than low-precision cost.

Low precision drifts, and a label can flip only where the drift exceeds the margin. So, for every window:

    sample     a seeded sample over all lengths is scored in float32
    drift      one half of it says how far label log-odds move
    bound      that drift's maximum, times a safety factor
    re-score   every ticket whose margin is under the bound is scored in float32
    verify     the other half, which the bound has not seen, is held against the outcome; a disagreement doubles the
               bound and goes back to `re-score`

An earlier run's drift profile gives the bound beforehand. A window then only confirms it: a third of the sample is
drawn, and all of it verifies. If a drift exceeds every one of the profile, the window goes the whole way above, and the
profile is replaced when the run has ended.

Nothing is carried from window to window, so that a resumed run gives the same bits. A window so small that the sample
is most of it is scored in float32 at once.

If none of n verified tickets disagrees, the rate of disagreement left is at most 3/n with 95% confidence (the rule of
three; Hanley and Lippman-Hand 1983, JAMA 249:1743). Windows verify different shares: of N tickets in all, N_w in a
window that verifies n_w, the rate is at most 3 max_w(N_w / n_w) / N, which is 3/n where the shares are equal.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.drift_profile import SAFETY, DriftProfile
from ticket_etl.sampling import stratified_sample

log = logging.getLogger("ticket_etl")

ExactScores = Callable[[Sequence[TokenIds]], FloatArray]
"""Label log-probabilities in float32: float32, shape (tickets, labels)."""

SAMPLED_SHARE, _SAMPLED_LEAST = 0.05, 64
"""Tickets of a window that are sampled where nothing is known of the drift."""

CONFIRMED_SHARE, _CONFIRMED_LEAST = 1 / 64, 32
"""Tickets of a window that are sampled to confirm a drift profile."""

_LEAST_BOUND = 1e-4
"""Log-odds that float32 itself does not settle; a bound of 0 could not grow."""


@dataclass
class CertificationCount:
    """What certification did in a run; drifts are in log-odds.

    exact: tickets of small windows, scored in float32 at once; all others were scored in low precision (`low`).
    thinnest: tickets for each verified one, in the window where that is most.
    disagreements: verified tickets that disagreed beyond the bound, so that it grew.
    widened: windows in which the drift profile did not hold.
    """

    exact: int = 0
    low: int = 0
    sampled: int = 0
    drifts: list[float] = field(default_factory=list)
    bound: float = 0.0
    rescored: int = 0
    changed: int = 0
    verified: int = 0
    thinnest: float = 0.0
    disagreements: int = 0
    widened: int = 0

    def summary(self) -> dict[str, float | int | None]:
        """The figures of the report; the rate is of what this run scored: 0 if all in float32, None if unknown."""
        p50, p90, p99, largest = np.quantile(self.drifts, [0.5, 0.9, 0.99, 1.0]).tolist() if self.drifts else [None] * 4
        scored = self.exact + self.low
        rate = min(1.0, 3.0 * self.thinnest / scored) if scored else None
        return {
            "scored_in_float32_at_once": self.exact,
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
            "windows_beyond_the_profile": self.widened,
            "remaining_disagreement_rate_95": rate,
        }

    def profile(self, before: DriftProfile | None, today: str) -> DriftProfile | None:
        """The drift profile after this run: a new one, `before` confirmed, or what replaces it.

        A bound that was enough for one night and not for the next only grows.
        """
        if not self.drifts:
            return before
        share = self.rescored / self.low
        if before is not None and not self.widened:
            return before.confirmed(self.sampled, self.verified, share, today)
        return DriftProfile.of(self.drifts, today, bound=self.bound, verified=self.verified, rescored_share=share)


class Certifier:
    """Certifies windows.

    Args:
        exact: the float32 scorer.
        seed: of the samples.
        profile: what earlier runs know of the drift.
        least: tickets of a window that are sampled at least; None for as many as it takes.
    """

    def __init__(
        self, exact: ExactScores, seed: int, profile: DriftProfile | None = None, *, least: int | None = None
    ) -> None:
        self._exact = exact
        self._seed = seed
        self._least = least
        self.before = profile
        self.count = CertificationCount()

    def summary(self) -> dict[str, Any]:
        """The figures of the report: what this run did, and the profile that it began with."""
        return self.count.summary() | {"profile": None if self.before is None else asdict(self.before)}

    def is_small(self, tickets: int) -> bool:
        """Whether a window has so few tickets that most of them would be sampled."""
        return 2 * self._sample_size(tickets) >= tickets

    def score_exactly(self, tickets: Sequence[TokenIds]) -> FloatArray:
        """Log-probabilities of a small window, in float32 at once: shape (tickets, labels)."""
        self.count.exact += len(tickets)
        return self._exact(tickets)

    def certify(self, log_probs: FloatArray, tickets: Sequence[TokenIds]) -> FloatArray:
        """Log-probabilities, shape (tickets, labels), with float32 rows wherever a label could flip."""
        certified = log_probs.copy()
        exact = np.zeros(len(tickets), dtype=np.bool_)

        def score(places: npt.NDArray[np.int64]) -> None:
            if len(places):
                certified[places] = self._exact([tickets[place] for place in places.tolist()])
                exact[places] = True

        sample = self._sample(tickets, self._sample_size(len(tickets)))
        score(sample)
        drifts = drift(log_probs[sample], certified[sample])
        if self.before is not None and _largest(drifts) <= self.before.drift_max:
            bound, verified = self.before.bound, sample
        else:
            if self.before is not None:
                self.count.widened += 1
                more = np.setdiff1d(self._sample(tickets, _full_size(len(tickets))), sample)
                score(more)
                sample = np.union1d(sample, more)
                drifts = drift(log_probs[sample], certified[sample])
            # Alternate by length, so that both halves cover all lengths.
            order = np.argsort([len(tickets[place]) for place in sample.tolist()], kind="stable")
            bound, verified = SAFETY * _largest(drifts[order[::2]]), sample[order[1::2]]
            bound = max(bound, _LEAST_BOUND, 0.0 if self.before is None else self.before.bound)
        disagree = certified[verified].argmax(axis=1) != log_probs[verified].argmax(axis=1)
        disagree &= np.isfinite(certified[verified]).all(axis=1)
        flipped = margins(log_probs[verified])[disagree]
        self.count.disagreements += int((flipped >= bound).sum())
        while (flipped >= bound).any():
            bound *= 2.0
        rescored = np.flatnonzero((margins(log_probs) < bound) & ~exact)
        score(rescored)
        self.count.low += len(tickets)
        self.count.sampled += len(sample)
        self.count.drifts += drifts[np.isfinite(drifts)].tolist()
        self.count.bound = max(self.count.bound, bound)
        self.count.rescored += len(rescored)
        self.count.changed += int((certified.argmax(axis=1) != log_probs.argmax(axis=1)).sum())
        # The longest is always in the sample, so it says nothing of the others.
        longest = max(range(len(tickets)), key=lambda place: (len(tickets[place]), place))
        at_random = len(verified) - int(longest in verified)
        self.count.verified += at_random
        self.count.thinnest = max(self.count.thinnest, len(tickets) / at_random if at_random else math.inf)
        return certified

    def _sample_size(self, tickets: int) -> int:
        if self.before is None:
            return _full_size(tickets)
        return max(_CONFIRMED_LEAST if self._least is None else self._least, round(CONFIRMED_SHARE * tickets))

    def _sample(self, tickets: Sequence[TokenIds], wanted: int) -> npt.NDArray[np.int64]:
        lengths = [len(ids) for ids in tickets]
        return np.array(stratified_sample(lengths, wanted, (self._seed, sum(lengths))), dtype=np.int64)


def _full_size(tickets: int) -> int:
    return max(_SAMPLED_LEAST, round(SAMPLED_SHARE * tickets))


def _largest(drifts: npt.NDArray[np.float64]) -> float:
    """The largest that is a number; a ticket that scores NaN is scored again anyway."""
    return float(drifts[np.isfinite(drifts)].max(initial=0.0))


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
