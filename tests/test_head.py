"""The head: what it computes, its file, and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ticket_etl.errors import UsageError
from ticket_etl.head import FeaturePart, Head, load_head
from ticket_etl.words import Words

LABELS = ("billing", "bug", "login")
PARTS = (FeaturePart("mean", 4), FeaturePart("last", 2))
TICKETS = [np.array(ids, dtype=np.int32) for ids in ([0, 1, 1], [4, 2], [3], [0], [1, 4, 4, 4])]


@pytest.fixture
def head() -> Head:
    random = np.random.default_rng(0)
    weight = random.normal(size=(3, 8)).astype(np.float32)
    bias = random.normal(size=3).astype(np.float32)
    words = Words(
        np.array([0, 1, 2, -1, 1], dtype=np.int32),
        random.uniform(1, 3, size=3).astype(np.float32),
        random.normal(size=(3, 3)).astype(np.float32),
    )
    return Head(LABELS, PARTS, True, weight, bias, {"model": "abc", "prompt": "def"}, 0.6, words)


def test_log_probs_are_a_softmax_of_unit_blocks_and_words(head: Head) -> None:
    assert head.words is not None
    features = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    blocks = np.hstack(
        [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (features[:, :4], features[:, 4:])]
    )
    exponents = np.exp(blocks @ head.weight.T + head.bias + head.words.logits(TICKETS))
    expected = exponents / exponents.sum(axis=1, keepdims=True)
    log_probs = head.log_probs(features, TICKETS)
    assert log_probs.dtype == np.float32
    assert np.exp(log_probs) == pytest.approx(expected, abs=1e-6)
    assert head.log_probs(7 * features, TICKETS) == pytest.approx(log_probs, abs=1e-6), "unit blocks have no length"


def test_features_that_are_not_finite_give_nan_alone(head: Head) -> None:
    features = np.ones((3, 8), dtype=np.float32)
    features[1, 5] = np.inf
    log_probs = head.log_probs(features, TICKETS[:3])
    assert np.isnan(log_probs[1]).all()
    assert np.isfinite(log_probs[[0, 2]]).all()


def test_zero_vectors_are_no_division_by_zero(head: Head) -> None:
    assert np.isfinite(head.log_probs(np.zeros((1, 8), dtype=np.float32), TICKETS[2:3])).all()


def test_file_keeps_everything(head: Head, tmp_path: Path) -> None:
    head.save(tmp_path / "h")
    again = load_head(tmp_path / "h")
    assert again.fingerprint == head.fingerprint
    features = np.ones((5, 8), dtype=np.float32)
    assert (again.log_probs(features, TICKETS) == head.log_probs(features, TICKETS)).all()
    assert (again.labels, again.parts, again.unit, again.min_score) == (LABELS, PARTS, True, 0.6)
    assert [entry.name for entry in tmp_path.iterdir()] == ["h"]


def test_head_without_words_is_kept_too(head: Head, tmp_path: Path) -> None:
    plain = replace(head, words=None)
    plain.save(tmp_path / "h")
    assert load_head(tmp_path / "h").words is None
    assert load_head(tmp_path / "h").fingerprint == plain.fingerprint != head.fingerprint


def test_fingerprint_knows_the_weights(head: Head) -> None:
    assert head.words is not None
    others = [replace(head, weight=head.weight + 1), replace(head, bias=head.bias + 1)]
    others += [
        replace(head, words=replace(head.words, **{name: getattr(head.words, name) + 1}))
        for name in ("word_of", "idf", "weight")
    ]
    assert len({each.fingerprint for each in [head, *others]}) == 6
    assert replace(head, min_score=0.9).fingerprint == head.fingerprint, "a threshold changes no score"


@pytest.mark.parametrize(
    ("bound_to", "labels", "named"),
    [
        ({"model": "abc", "prompt": "xyz"}, LABELS, "another prompt;"),
        ({"model": "xyz", "prompt": "xyz"}, LABELS, "another model and prompt;"),
        ({"model": "abc", "prompt": "def"}, LABELS[::-1], "another label list;"),
    ],
)
def test_what_it_does_not_belong_to_is_named(
    head: Head, bound_to: dict[str, str], labels: tuple[str, ...], named: str
) -> None:
    head.check({"model": "abc", "prompt": "def"}, LABELS)
    with pytest.raises(UsageError, match=named):
        head.check(bound_to, labels)


def test_other_files_are_no_heads(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no head")
    save_file({"weight": np.zeros((2, 2), np.float32)}, tmp_path / "weights")
    save_file({"weight": np.zeros((2, 2), np.float32)}, tmp_path / "odd", {"ticket-etl-head": '{"version": 2}'})
    save_file({"weight": np.zeros((2, 2), np.float32)}, tmp_path / "new", {"ticket-etl-head": '{"version": 9}'})
    for name, problem in (
        ("text", "is not a head"),
        ("weights", "is not a head"),
        ("odd", "is not a head"),
        ("new", "another version"),
        ("missing", "cannot read"),
        (".", "cannot read"),
    ):
        with pytest.raises(UsageError, match=problem):
            load_head(tmp_path / name)
