"""Certification on made-up scores, where the truth is known."""

from collections.abc import Sequence

import numpy as np
import pytest

from ticket_etl.certify import Certifier, drift, margins
from ticket_etl.prompt import TokenIds

COUNT = 1_000


class World:
    """Exact scores, and low-precision ones that drift from them."""

    def __init__(self, noise: float, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.exact = log_softmax(random.normal(0, 1, (COUNT, 4)))
        self.low = log_softmax(self.exact + random.uniform(-noise, noise, self.exact.shape))
        # The first token id says which ticket it is.
        self.tickets = [
            np.array([number, *[0] * int(random.integers(1, 60))], dtype=np.int32) for number in range(COUNT)
        ]
        self.asked: list[int] = []

    def score(self, tickets: Sequence[TokenIds]) -> np.ndarray:
        places = [int(ticket[0]) for ticket in tickets]
        self.asked += places
        return self.exact[places]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.5])
def test_certified_labels_are_the_exact_ones(noise: float) -> None:
    world = World(noise)
    certifier = Certifier(world.score, seed=0)
    certified = certifier.certify(world.low, world.tickets)
    assert (world.low.argmax(axis=1) != world.exact.argmax(axis=1)).any(), "the noise must flip labels to begin with"
    assert (certified.argmax(axis=1) == world.exact.argmax(axis=1)).all()
    assert certifier.count.changed == (world.low.argmax(axis=1) != world.exact.argmax(axis=1)).sum()


def test_only_what_could_flip_is_scored_again() -> None:
    """Each ticket once, the sample included, and only those under the bound."""
    world = World(0.05)
    certifier = Certifier(world.score, seed=0)
    certified = certifier.certify(world.low, world.tickets)
    count = certifier.count
    assert len(world.asked) == len(set(world.asked)) == count.sampled + count.rescored
    assert count.rescored < COUNT / 4
    untouched = np.setdiff1d(np.arange(COUNT), world.asked)
    assert (certified[untouched] == world.low[untouched]).all()
    assert (margins(world.low[untouched]) >= count.bound).all()
    assert (certified[world.asked] == world.exact[world.asked]).all()


def test_bound_covers_the_drift_that_was_seen() -> None:
    world = World(0.1)
    certifier = Certifier(world.score, seed=0)
    certifier.certify(world.low, world.tickets)
    summary = certifier.count.summary()
    assert 0 < summary["drift_median"] < summary["drift_p90"] < summary["drift_max"] < summary["bound"]
    assert summary["remaining_disagreement_rate_95"] == 3 / summary["verified"]


def test_disagreement_in_the_second_half_widens_the_bound() -> None:
    """Drift that the measured half happens not to show is noticed by the half that verifies."""
    world = World(0.0)
    probe = Certifier(world.score, seed=0)
    probe.certify(world.low, world.tickets)
    sampled = sorted(world.asked[: probe.count.sampled], key=lambda place: len(world.tickets[place]))
    victim = sampled[1]  # stands in the verifying half
    world.low[victim] = np.roll(world.exact[victim], 1)
    certifier = Certifier(world.score, seed=0)
    certifier.certify(world.low, world.tickets)
    assert certifier.count.disagreements > 0
    assert certifier.count.bound > margins(world.low)[victim]


def test_small_windows_are_scored_exactly_throughout() -> None:
    world = World(0.5)
    certified = Certifier(world.score, seed=0).certify(world.low[:40], world.tickets[:40])
    assert (certified == world.exact[:40]).all()


def test_scores_that_are_not_numbers_are_scored_again() -> None:
    world = World(0.01)
    world.low[123] = np.nan
    certified = Certifier(world.score, seed=0).certify(world.low, world.tickets)
    assert (certified[123] == world.exact[123]).all()


def test_same_seed_same_sample() -> None:
    worlds = [World(0.1), World(0.1)]
    for world in worlds:
        Certifier(world.score, seed=7).certify(world.low, world.tickets)
    assert worlds[0].asked == worlds[1].asked


def test_drift_is_of_log_odds_not_of_levels() -> None:
    """A shift of all labels alike moves no odds."""
    low = log_softmax(np.array([[1.0, 2.0, 3.0]]))
    assert drift(low + np.float32(0.25), low) == pytest.approx([0.0], abs=1e-6)
    assert drift(low, low - np.array([[0.0, 0.5, 0.0]], dtype=np.float32)) == pytest.approx([0.5])
