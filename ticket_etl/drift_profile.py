"""What certified runs have found out of low precision's drift, kept so that later nights only confirm it.

A profile belongs to a model revision, machine, dtype, prompt and label set. A run reads it once, at its start, and
replaces it only when OUT is written: the bound in force is part of the journal's fingerprint.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ticket_etl import kept

SAFETY = 1.5
"""How far above the largest drift that was seen the bound lies."""

_KIND = "drift"


@dataclass(frozen=True)
class DriftProfile:
    """Drifts and bound are in log-odds.

    drift_max: a drift beyond this one says that the profile no longer holds.
    sampled, verified: tickets of all runs that made and confirmed it.
    rescored_share: of the tickets that the last run scored in low precision, those scored again in float32.
    runs: how many; since, last: days (UTC, ISO 8601).
    """

    bound: float
    drift_median: float
    drift_p90: float
    drift_p99: float
    drift_max: float
    sampled: int
    verified: int
    rescored_share: float
    runs: int
    since: str
    last: str

    @classmethod
    def of(
        cls, drifts: Sequence[float], today: str, *, bound: float = 0.0, verified: int = 0, rescored_share: float = 0.0
    ) -> "DriftProfile":
        """What one run's drifts say; at least one, all finite. The bound is that of the run, or higher."""
        p50, p90, p99, largest = np.quantile(drifts, [0.5, 0.9, 0.99, 1.0]).tolist()
        bound = max(bound, SAFETY * largest)
        return cls(bound, p50, p90, p99, largest, len(drifts), verified, rescored_share, 1, today, today)

    @property
    def in_force(self) -> list[float]:
        """What of it decides a score."""
        return [self.bound, self.drift_max]

    def confirmed(self, sampled: int, verified: int, rescored_share: float, today: str) -> "DriftProfile":
        """This profile after another run in which it held."""
        return dataclasses.replace(
            self,
            sampled=self.sampled + sampled,
            verified=self.verified + verified,
            rescored_share=rescored_share,
            runs=self.runs + 1,
            last=today,
        )


def load_profile(key: kept.Key) -> DriftProfile | None:
    """The profile that is kept under a key; one that is damaged counts as absent."""
    value = kept.recall(_KIND, key)
    if value is None:
        return None
    kinds = {each.name: each.type for each in dataclasses.fields(DriftProfile)}
    if value.keys() != kinds.keys() or any(type(value[name]) is not kind for name, kind in kinds.items()):
        return None
    profile = DriftProfile(**value)
    return profile if 0.0 <= profile.drift_max <= profile.bound < float("inf") else None


def keep_profile(key: kept.Key, profile: DriftProfile) -> None:
    """Keep a profile, where there is a place to; of another run's, kept meanwhile, the bounds stay where larger."""
    with kept.one_at_a_time(_KIND):
        if (other := load_profile(key)) is not None:
            bound, drift_max = max(profile.bound, other.bound), max(profile.drift_max, other.drift_max)
            profile = dataclasses.replace(profile, bound=bound, drift_max=drift_max)
        kept.keep(_KIND, key, dataclasses.asdict(profile))
