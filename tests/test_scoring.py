"""The scorer on the first real tickets: what is off gives way before anything is journalled."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.tiny import save_tiny_model
from ticket_etl import scorers
from ticket_etl.arrays import TokenIds
from ticket_etl.config import ScoringConfig
from ticket_etl.kernels import PrepackedLinear
from ticket_etl.labels import Label, LabelSet
from ticket_etl.models import ModelFolder, find_model
from ticket_etl.plan import Batch
from ticket_etl.scorers import Packed, Reference
from ticket_etl.scoring import Scoring

LABELS = LabelSet((Label("billing"), Label("bug")), system="Sort.")
TEXTS = [None, "I was billed twice. " * 3, " ", "refund", "error 500 on export " * 9, "refund", "cannot log in"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return find_model(str(save_tiny_model(tmp_path_factory.mktemp("model"))))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path))


def scoring_of(model_folder: ModelFolder, dtype: str) -> Scoring:
    return Scoring(ScoringConfig(input="", dtype=dtype), LABELS, model_folder)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the tickets that went through the model alone."""
    lengths: list[int] = []
    honest = Reference.score

    def counting(self: Reference, batch: Batch, tickets: Sequence[TokenIds]) -> np.ndarray:
        lengths.extend(len(tickets[ticket]) for ticket in batch.tickets)
        return honest(self, batch, tickets)

    monkeypatch.setattr(Reference, "score", counting)
    return lengths


def spoil_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by more than rounding, and by less than the trial on made-up tickets notices."""
    honest = Packed.score

    def off(self: Packed, batch: Batch, tickets: Sequence[TokenIds]) -> np.ndarray:
        return honest(self, batch, tickets) + np.float32(9e-4)

    monkeypatch.setattr(Packed, "score", off)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scorer_that_is_right_stays(
    dtype: str, model_folder: ModelFolder, alone: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Held against three tickets of middling length, whatever is blank, repeated or very long among them."""
    scoring = scoring_of(model_folder, dtype)
    scorer = scoring.scorer
    alone.clear()
    scoring.check_on([*TEXTS, "very long " * 200])
    assert scoring.scorer is scorer
    assert len(alone) == 3
    assert max(alone) < 200
    assert caplog.messages == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scorer_that_is_off_gives_way(
    dtype: str, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once; certification then uses the other strategy too."""
    spoil_packed(monkeypatch)
    scoring = scoring_of(model_folder, dtype)
    assert scoring.strategy.name == "packed+prefix"
    scoring.check_on(TEXTS)
    assert scoring.strategy.name == "token-budget+prefix"
    (message,) = caplog.messages
    assert "packed+prefix does not fit this model (log-probabilities of real tickets are off by 0.0009" in message
    assert "using token-budget+prefix" in message
    tickets = [ticket.ids for ticket in scoring.encoder.encode(["refund", "error 500"])]
    reference = scorers.score_plan(scoring.reference, scorers.REFERENCE, scoring.limits, tickets)
    assert scoring.exact_scores(tickets) == pytest.approx(reference, abs=1e-4)


def test_nothing_to_check_on(model_folder: ModelFolder, alone: list[int]) -> None:
    scoring = scoring_of(model_folder, "float32")
    alone.clear()
    for texts in ([], [None, ""]):
        scoring.check_on(texts)
    assert alone == []
    scoring.check_on(["one"])
    assert len(alone) == 1


def test_packed_weights_that_are_off_give_way_to_the_models_own_layers(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every strategy computes with them, so that only the reference, on its own layers, can tell."""
    scoring = scoring_of(model_folder, "float32")
    honest = PrepackedLinear.product
    monkeypatch.setattr(PrepackedLinear, "product", lambda *arguments, **how: honest(*arguments, **how) * 1.01)
    scoring.check_on(TEXTS)
    assert scoring.scorer is scoring.reference
    assert scoring.strategy is scorers.REFERENCE
    assert "using its own layers, each ticket alone" in caplog.messages[-1]
