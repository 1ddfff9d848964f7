"""Fitting a head from a file: what is left out, what is kept for the next time, and what is refused."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("sklearn", reason="the extra `fit` is not installed")

from tests.tiny import save_tiny_model
from ticket_etl import fit
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import InputError, ModelError, UsageError
from ticket_etl.features import FeatureReader
from ticket_etl.head import load_head

NAMES = ("billing", "bug", "login")


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
    assert {reason: count for reason, count in outcome.left_out.items() if count} == {
        "without text": 2,
        "without label": 1,
        "with a text seen before": 1,
    }
    assert outcome.unknown == {"Billing": 2}
    assert set(outcome.held_out) == {"head", "zero-shot", "TF-IDF"}
    assert outcome.held_out["TF-IDF"][0] == 1.0, "these texts tell their labels by their words"
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


def test_tickets_that_were_not_read_are_left_out(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a ticket does not fit in memory even alone."""
    read = FeatureReader.read

    def failing(self: FeatureReader, texts: list[str], on_progress: object) -> object:
        features, zero_shot = read(self, texts)
        features[self.parts[0]][3] = np.nan
        return features, zero_shot

    monkeypatch.setattr(FeatureReader, "read", failing)
    outcome = kit.fit()
    assert outcome.tickets == 35
    assert "1 that did not fit in memory" in str(outcome)
    assert np.isfinite(load_head(kit.folder / "head").weight).all()
    monkeypatch.setattr(FeatureReader, "read", read)
    assert kit.fit().tickets == 36, "what was not read is not kept"


def test_label_that_was_not_read_is_an_error(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    read = FeatureReader.read

    def failing(self: FeatureReader, texts: list[str], on_progress: object) -> object:
        features, zero_shot = read(self, texts)
        features[self.parts[0]][-1] = np.nan
        return features, zero_shot

    monkeypatch.setattr(FeatureReader, "read", failing)
    with pytest.raises(ModelError, match="did not fit in memory"):
        kit.fit()
    assert not (kit.folder / "head").exists()


def test_features_of_another_version_are_read_anew(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.fit()
    monkeypatch.setattr("ticket_etl.features.__version__", "0.0.1")
    monkeypatch.setattr(FeatureReader, "read", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        kit.fit()


def test_examples_of_the_label_file_are_learned_from(kit: Kit) -> None:
    kit.fit()
    without = load_head(kit.folder / "head").weight
    labels = kit.folder / "labels.toml"
    prompt = load_head(kit.folder / "head").bound_to["prompt"]
    labels.write_text(labels.read_text() + 'examples = ["I cannot sign in"]\n')
    kit.fit()
    assert load_head(kit.folder / "head").bound_to["prompt"] != prompt, "a causal model reads examples too"
    assert (load_head(kit.folder / "head").weight != without).any()


def test_features_of_old_fits_are_forgotten(kit: Kit) -> None:
    folder = kit.folder / "cache" / "features"
    folder.mkdir(parents=True)
    for at in range(12):
        (folder / f"{at}.safetensors").write_bytes(b"")
        os.utime(folder / f"{at}.safetensors", (at, at))
    kit.fit()
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 8
    assert {f"{at}.safetensors" for at in range(5, 12)} < names


def test_what_cannot_be_fitted_is_refused(kit: Kit) -> None:
    with pytest.raises(UsageError, match="standard input"):
        kit.fit(input="-")
    pl.DataFrame({"text": ["a", "b"], "gold": ["billing", "other"]}).write_parquet(kit.folder / "few.parquet")
    with pytest.raises(InputError, match="0 of the 3 labels have two tickets or more in column 'gold'"):
        kit.fit(input=str(kit.folder / "few.parquet"))
    with pytest.raises(UsageError, match="same file"):
        fit.fit_input(kit.config, "gold", kit.folder / "in.parquet", precision=None, on_progress=lambda *_: None)
    assert not (kit.folder / "head").exists()
