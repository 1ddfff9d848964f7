"""Certification on made-up scores, where the truth is known."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ticket_etl.arrays import TokenIds
from ticket_etl.certify import Certifier, drift, margins
from ticket_etl.drift_profile import DriftProfile, keep_profile, load_profile

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
    assert summary["remaining_disagreement_rate_95"] == pytest.approx(3 / summary["verified"])


def test_rate_is_that_of_the_window_which_verifies_least() -> None:
    """Windows of 65 and of 1,000 both verify 31 at random: a fault in the large one shows no sooner."""
    profile = replace(profile_of(World(0.1)), drift_max=9.0, bound=9.0)
    certifier = Certifier((world := World(0.1)).score, 0, profile)
    certifier.certify(world.low[:65], world.tickets[:65])
    assert certifier.count.summary()["remaining_disagreement_rate_95"] == pytest.approx(3 / 31)
    certifier.certify(world.low, world.tickets)
    assert certifier.count.verified == 62
    assert certifier.count.summary()["remaining_disagreement_rate_95"] == pytest.approx(3 * 1000 / 31 / 1065)
    certifier.score_exactly(world.tickets[:100])
    assert certifier.count.summary()["remaining_disagreement_rate_95"] == pytest.approx(3 * 1000 / 31 / 1165)


@pytest.mark.parametrize("drift_elsewhere", [False, True])
def test_disagreement_in_the_second_half_widens_the_bound(drift_elsewhere: bool) -> None:
    """Drift that the measured half happens not to show is noticed by the half that verifies; the bound may be 0."""
    world = World(0.0)
    world.low = world.low if drift_elsewhere else world.exact.copy()
    probe = Certifier(world.score, seed=0)
    probe.certify(world.low, world.tickets)
    sampled = sorted(world.asked[: probe.count.sampled], key=lambda place: len(world.tickets[place]))
    victim = sampled[1]  # stands in the verifying half
    world.low[victim] = np.roll(world.exact[victim], 1)
    certifier = Certifier(world.score, seed=0)
    certifier.certify(world.low, world.tickets)
    assert certifier.count.disagreements == 1
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


# --- drift profiles --------------------------------------------------------------------------------------------------

TODAY, TOMORROW = "2030-01-01", "2030-01-02"


def profile_of(world: World) -> DriftProfile:
    certifier = Certifier(world.score, seed=0)
    certifier.certify(world.low, world.tickets)
    profile = certifier.count.profile(None, TODAY)
    assert profile is not None
    world.asked.clear()
    return profile


def test_profile_says_what_the_run_found() -> None:
    world = World(0.1)
    certifier = Certifier(world.score, seed=0)
    certifier.certify(world.low, world.tickets)
    profile = certifier.count.profile(None, TODAY)
    assert profile is not None
    summary = certifier.summary()
    assert summary["profile"] is None
    assert (profile.drift_median, profile.drift_max) == (summary["drift_median"], summary["drift_max"])
    assert profile.bound >= max(summary["bound"], 1.5 * profile.drift_max)
    assert profile.rescored_share == summary["rescored"] / COUNT
    assert (profile.runs, profile.since, profile.last) == (1, TODAY, TODAY)


def test_later_run_confirms_a_profile_with_fewer_tickets() -> None:
    """The labels are the exact ones all the same, and the whole sample verifies them."""
    profile = profile_of(World(0.1))
    world = World(0.1, seed=1)
    certifier = Certifier(world.score, 0, replace(profile, drift_max=profile.bound))
    certified = certifier.certify(world.low, world.tickets)
    count = certifier.count
    assert (certified.argmax(axis=1) == world.exact.argmax(axis=1)).all()
    assert count.sampled == 32
    assert count.verified == 31  # the longest is no random ticket
    assert count.bound == profile.bound
    assert count.widened == 0
    assert len(world.asked) == len(set(world.asked)) == count.sampled + count.rescored
    after = count.profile(certifier.before, TOMORROW)
    assert after is not None
    assert (after.bound, after.sampled, after.runs) == (profile.bound, profile.sampled + 32, 2)
    assert (after.since, after.last) == (TODAY, TOMORROW)


def test_drift_beyond_the_profile_is_sampled_in_full() -> None:
    """The bound grows, the labels are the exact ones, and the profile is replaced."""
    profile = profile_of(World(0.01))
    world = World(0.3, seed=1)
    certifier = Certifier(world.score, 0, profile)
    certified = certifier.certify(world.low, world.tickets)
    count = certifier.count
    assert (certified.argmax(axis=1) == world.exact.argmax(axis=1)).all()
    assert count.widened == 1
    assert count.sampled >= 64
    assert len(world.asked) == len(set(world.asked)) == count.sampled + count.rescored
    after = count.profile(certifier.before, TOMORROW)
    assert after is not None
    assert after.bound > 10 * profile.bound
    assert (after.runs, after.since) == (1, TOMORROW)


def test_bound_of_a_profile_does_not_shrink() -> None:
    """Neither when drifts are smaller tonight, nor when another one was exceeded."""
    profile = replace(profile_of(World(0.3)), drift_max=0.0)
    certifier = Certifier((world := World(0.01, seed=1)).score, 0, profile)
    certifier.certify(world.low, world.tickets)
    assert certifier.count.widened == 1
    assert certifier.count.bound == profile.bound
    after = certifier.count.profile(profile, TOMORROW)
    assert after is not None
    assert after.bound == profile.bound


def test_run_that_certified_nothing_leaves_the_profile_alone() -> None:
    profile = profile_of(World(0.1))
    certifier = Certifier(World(0.1).score, 0, profile)
    certifier.score_exactly(World(0.1).tickets[:10])
    assert certifier.count.profile(profile, TOMORROW) == profile
    assert Certifier(World(0.1).score, 0).count.profile(None, TODAY) is None


def test_windows_of_which_most_would_be_sampled_are_small() -> None:
    profile = profile_of(World(0.1))
    assert [Certifier(World(0.1).score, 0).is_small(count) for count in (1, 128, 129, 2048)] == [
        True,
        True,
        False,
        False,
    ]
    assert [Certifier(World(0.1).score, 0, profile).is_small(count) for count in (64, 65)] == [True, False]


def test_nothing_is_claimed_of_what_was_not_scored() -> None:
    """All labels came from the cache or the journal: this run can say nothing of them."""
    assert Certifier(World(0.5).score, seed=0).summary()["remaining_disagreement_rate_95"] is None


def test_small_windows_alone_leave_no_doubt() -> None:
    world = World(0.5)
    certifier = Certifier(world.score, seed=0)
    assert (certifier.score_exactly(world.tickets[:7]) == world.exact[:7]).all()
    assert certifier.summary()["scored_in_float32_at_once"] == 7
    assert certifier.summary()["remaining_disagreement_rate_95"] == 0.0


@pytest.mark.parametrize("known", [False, True])
def test_sampled_ticket_that_scores_nan_hides_no_drift(known: bool) -> None:
    """Its drift is not a number; the others still give the bound."""
    world = World(0.3)
    profile = profile_of(World(0.3)) if known else None
    world.low[::2] = np.nan
    certified = Certifier(world.score, 0, profile).certify(world.low, world.tickets)
    assert (certified.argmax(axis=1) == world.exact.argmax(axis=1)).all()


KEY = {"model": "m", "dtype": "bfloat16"}


def test_profile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path))
    assert load_profile(KEY) is None
    profile = profile_of(World(0.1))
    keep_profile(KEY, profile)
    assert load_profile(KEY) == profile
    assert load_profile(KEY | {"dtype": "float16"}) is None


def test_profile_keeps_what_another_run_has_found_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at once read the same profile; the bound of the one that learned more stays."""
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path))
    first = profile_of(World(0.01))
    keep_profile(KEY, first)
    keep_profile(KEY, larger := profile_of(World(0.3)))
    keep_profile(KEY, first.confirmed(32, 31, 0.1, TOMORROW))
    kept = load_profile(KEY)
    assert kept is not None
    assert (kept.bound, kept.drift_max, kept.last) == (larger.bound, larger.drift_max, TOMORROW)


@pytest.mark.parametrize("damage", [{"bound": "0.1"}, {"bound": float("1e999")}, {"drift_max": 9.0}, {"more": 1}])
def test_damaged_profile_counts_as_absent(
    damage: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path))
    keep_profile(KEY, profile_of(World(0.1)))
    (path,) = (tmp_path / "drift").glob("*.json")
    entry = json.loads(path.read_bytes())
    path.write_text(json.dumps(entry | {"value": entry["value"] | damage}), encoding="utf-8")
    assert load_profile(KEY) is None
