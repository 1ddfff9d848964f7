"""Fitting a head: what is chosen, what is left out, and that nothing of a ticket leaks into its own figure."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("sklearn", reason="the extra `fit` is not installed")

from tests.tiny import save_tiny_model
from ticket_etl import fit
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import InputError, UsageError
from ticket_etl.features import FeatureReader
from ticket_etl.head import FeaturePart, Head, load_head

NAMES = ("billing", "bug", "login")
OWN, OTHER = FeaturePart("mean", 4), FeaturePart("mean", 2)


def clusters(count: int = 90, noise: float = 0.6) -> tuple[dict[FeaturePart, np.ndarray], np.ndarray]:
    """Features that tell the labels apart in one part only; the other is noise."""
    random = np.random.default_rng(0)
    gold = np.arange(count) % 3
    centers = random.normal(size=(3, 8))
    own = random.normal(size=(count, 8)).astype(np.float32)
    telling = (centers[gold] + noise * random.normal(size=(count, 8))).astype(np.float32)
    return {OWN: own, OTHER: telling}, gold


def test_the_telling_features_are_chosen() -> None:
    features, gold = clusters()
    folds = fit.make_folds(gold, seed=0)
    chosen, held_out = fit.choose(features, [(OWN,), (OTHER,)], gold, folds)
    assert chosen.parts == (OTHER,)
    assert chosen.accuracy > 0.8
    assert chosen.accuracy == np.mean(held_out.argmax(axis=1) == gold)
    assert held_out.sum(axis=1) == pytest.approx(np.ones(len(gold)), abs=1e-5)


def test_held_out_figures_are_held_out() -> None:
    """On labels that nothing can tell, figures stay at chance, however well the fitted tickets are known."""
    features, gold = clusters()
    shuffled = np.random.default_rng(1).permutation(gold)
    chosen, _ = fit.choose(features, [(OWN,)], shuffled, fit.make_folds(shuffled, seed=0))
    assert chosen.accuracy < 0.55


@pytest.mark.parametrize("labels", [2, 3])
def test_weights_are_scikit_learns_model(labels: int) -> None:
    """Standardisation and two-label models folded in, to its own probabilities."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    features, gold = clusters()
    gold = gold % labels
    values = fit.stack(features, (OTHER,))
    weight, bias = fit.fit_weights(values, gold, 0.3, labels)
    scaler = StandardScaler().fit(values)
    model = LogisticRegression(C=0.3, class_weight="balanced", max_iter=300, tol=1e-3).fit(
        scaler.transform(values), gold
    )
    head = Head(NAMES[:labels], (OTHER,), True, weight, bias)
    assert np.exp(head.log_probs(features[OTHER])) == pytest.approx(
        model.predict_proba(scaler.transform(values)), abs=1e-4
    )


def test_label_without_tickets_is_never_given() -> None:
    features, gold = clusters()
    weight, bias = fit.fit_weights(fit.stack(features, (OTHER,)), gold, 0.1, 5)
    log_probs = Head(("a", "b", "c", "d", "e"), (OTHER,), True, weight, bias).log_probs(features[OTHER])
    assert np.isfinite(log_probs).all()
    assert log_probs.argmax(axis=1).max() == 2


def test_threshold_keeps_its_promise() -> None:
    scores = np.array([0.9, 0.8, 0.8, 0.7, 0.6, 0.5], dtype=np.float32)
    right = np.array([True, True, False, True, True, False])
    assert fit.learn_threshold(scores, right, 0.75) == (pytest.approx(0.6), 5 / 6)
    assert fit.learn_threshold(scores, right, 0.9) == (pytest.approx(0.9), 1 / 6)
    assert fit.learn_threshold(scores, ~right, 0.9) == (None, None)


class Kit:
    """A labelled file and a tiny model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = {"billing": "invoice charged twice", "bug": "error crash export", "login": "password account locked"}
        texts = [f"{words[NAMES[at % 3]]} number {at}" for at in range(36)]
        rows = [(text, NAMES[at % 3]) for at, text in enumerate(texts)]
        rows += [(texts[0], "bug"), ("x", None), (None, "bug"), ("  ", "bug"), ("y", "Billing"), ("z", "Billing")]
        pl.DataFrame(rows, schema=["text", "gold"], orient="row").write_parquet(folder / "in.parquet")
        labels = "".join(f'[[label]]\nname = "{name}"\n' for name in NAMES)
        (folder / "labels.toml").write_text(labels)
        self.config = ScoringConfig(
            input=str(folder / "in.parquet"),
            labels=folder / "labels.toml",
            model=str(save_tiny_model(folder / "model")),
        )

    def fit(self, **changes: object) -> fit.FitOutcome:
        config = ScoringConfig(**(self.config.__dict__ | changes))  # type: ignore[arg-type]
        return fit.fit_input(config, "gold", self.folder / "head", precision=None, on_progress=lambda *_: None)


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kit:
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "cache"))
    return Kit(tmp_path)


def test_every_ticket_is_accounted_for(kit: Kit) -> None:
    outcome = kit.fit()
    assert (outcome.tickets, outcome.labels) == (36, 3)
    assert outcome.left_out == {"without text": 2, "without label": 1, "with a text seen before": 1}
    assert outcome.unknown == {"Billing": 2}
    assert set(outcome.others) == {"zero-shot", "TF-IDF"}
    assert outcome.others["TF-IDF"][0] == 1.0, "these texts tell their labels by their words"
    assert "Billing 2: not in the label set" in str(outcome)
    assert load_head(kit.folder / "head").labels == NAMES


def test_second_fit_reads_no_features(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    first = kit.fit()
    weights = load_head(kit.folder / "head").fingerprint
    monkeypatch.setattr(FeatureReader, "read", lambda *_: pytest.fail("features were read again"))
    assert kit.fit() == first
    assert load_head(kit.folder / "head").fingerprint == weights


def test_features_of_another_prompt_are_read_anew(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.fit()
    labels = kit.folder / "labels.toml"
    labels.write_text(labels.read_text() + '[prompt]\ninstruction = "Say what it is."\n')
    monkeypatch.setattr(FeatureReader, "read", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kit.fit()


def test_what_cannot_be_fitted_is_refused(kit: Kit) -> None:
    with pytest.raises(UsageError, match="standard input"):
        kit.fit(input="-")
    pl.DataFrame({"text": ["a", "b"], "gold": ["billing", "other"]}).write_parquet(kit.folder / "few.parquet")
    with pytest.raises(InputError, match="0 of the 3 labels have two tickets or more in column 'gold'"):
        kit.fit(input=str(kit.folder / "few.parquet"))
    with pytest.raises(UsageError, match="same file"):
        fit.fit_input(kit.config, "gold", kit.folder / "in.parquet", precision=None, on_progress=lambda *_: None)
    assert not (kit.folder / "head").exists()
