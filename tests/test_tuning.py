"""Settings that are `auto`: which are measured, what follows from the figures, and what is kept of them."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import LAYOUTS, save_tiny_model, tiny_encoder, tiny_encoder_tokenizer, tiny_model, tiny_tokenizer
from ticket_etl import kept, tuning
from ticket_etl.config import ScoringConfig
from ticket_etl.encoder_model import EncoderModel
from ticket_etl.kernels import BFLOAT16, FLOAT32
from ticket_etl.labels import Label, LabelSet
from ticket_etl.models import ModelFolder, find_model
from ticket_etl.prompt import build_encoder_prompt, build_prompt
from ticket_etl.scoring import Scoring
from ticket_etl.tuning import (
    Speed,
    Tuning,
    choose,
    contestants,
    defaults,
    made_up_tickets,
    measure,
    measure_undisturbed,
    stand_in,
)

LABELS = LabelSet((Label("billing question"), Label("billing dispute"), Label("bug")), system="Sort.")
FIXED = Tuning(FLOAT32, "packed+prefix", 2048, "defaults")


def speeds(**seconds: float) -> list[Speed]:
    """f2048=1.0 is float32 with 2,048 tokens a batch in one second, b bfloat16, t float32 in token-budget batches."""
    kinds = {"f": (FLOAT32, "packed+prefix"), "b": (BFLOAT16, "packed+prefix"), "t": (FLOAT32, "token-budget+prefix")}
    return [Speed(*kinds[name[0]], int(name[1:]), value) for name, value in seconds.items()]


# --- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"f2048": 1.0, "f1024": 0.8, "f4096": 0.9, "t2048": 1.5}, ("packed+prefix", 1024)),
        ({"f2048": 1.0, "f1024": 1.1, "f4096": 1.1, "t2048": 0.5}, ("token-budget+prefix", 2048)),
        ({"f2048": 1.0, "f1024": 0.96}, ("packed+prefix", 2048)),  # within the noise
        ({"t2048": 1.0}, ("token-budget+prefix", 2048)),  # the default does not fit this model
        ({}, ("packed+prefix", 2048)),
    ],
)
def test_fastest_batches_are_chosen(measured: dict[str, float], expected: tuple[str, int]) -> None:
    chosen = choose(speeds(**measured), FIXED, "auto", None)
    assert (chosen.strategy, chosen.batch_tokens) == expected
    assert chosen.dtype == FLOAT32


@pytest.mark.parametrize(
    ("seconds", "rescored_share", "dtype"),
    [
        (0.60, None, BFLOAT16),  # 0.60 + 0.05 sampled + 0.15 assumed to be scored again < 0.9
        (0.75, None, FLOAT32),
        (0.70, 0.05, BFLOAT16),  # earlier runs know better
        (0.60, 0.40, FLOAT32),
        (1.20, 0.00, FLOAT32),
    ],
)
def test_bfloat16_must_pay_for_its_certification(seconds: float, rescored_share: float | None, dtype: str) -> None:
    chosen = choose(speeds(f2048=1.0, b2048=seconds), FIXED, "auto", rescored_share)
    assert chosen.dtype == dtype
    assert chosen.bfloat16_speedup == pytest.approx(1.0 / seconds)


def test_each_dtype_is_judged_by_its_best_batches() -> None:
    chosen = choose(speeds(f2048=1.0, f1024=0.6, b2048=0.5, b4096=0.45), FIXED, "auto", None)
    assert (chosen.dtype, chosen.batch_tokens) == (FLOAT32, 1024)
    chosen = choose(speeds(f2048=1.0, f1024=0.9, b2048=0.5, b4096=0.3), FIXED, "auto", None)
    assert (chosen.dtype, chosen.batch_tokens) == (BFLOAT16, 4096)


def test_dtype_that_was_asked_for_is_not_questioned() -> None:
    low = Tuning(BFLOAT16, "packed+prefix", 2048, "defaults")
    assert choose(speeds(b2048=2.0, b1024=1.0), low, BFLOAT16, None).dtype == BFLOAT16
    assert choose(speeds(f2048=2.0, f1024=1.0), FIXED, FLOAT32, None).dtype == FLOAT32


def test_only_what_is_auto_is_measured() -> None:
    def wanted(**given: object) -> list[tuple[str, str, int]]:
        config = ScoringConfig(input="", **given)  # type: ignore[arg-type]
        return contestants(config, defaults(config, "cpu", "causal"))

    assert {dtype for dtype, _, _ in wanted()} == {FLOAT32, BFLOAT16}
    assert {dtype for dtype, _, _ in wanted(dtype="bfloat16")} == {BFLOAT16}
    assert {name for _, name, _ in wanted()} == {"packed+prefix", "token-budget+prefix"}
    assert {name for _, name, _ in wanted(strategy="naive")} == {"naive"}
    assert {tokens for _, _, tokens in wanted(max_batch_tokens=777)} == {777}
    assert wanted()[0] == (FLOAT32, "packed+prefix", 2048)


# --- the measurement -------------------------------------------------------------------------------------------------


def folder_of(kind: str, path: Path) -> ModelFolder:
    return ModelFolder("tiny", path, "0" * 16, None, "folder", kind)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reads_labels", [True, False])
def test_stand_in_scores_in_both_precisions(
    layout: str,
    reads_labels: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every architecture, with nothing said of what does not fit it."""
    monkeypatch.setattr(tuning, "_SECONDS", 1e9)
    monkeypatch.setattr(tuning, "_SAMPLE_TOKENS", 600)
    tokenizer = tiny_tokenizer()
    model, prompt = tiny_model(layout, tokenizer), build_prompt(tokenizer, LABELS)
    reading = stand_in(model, folder_of("causal", tmp_path), prompt, reads_labels=reads_labels)
    wanted = [(dtype, name, 512) for name in ("packed+prefix", "token-budget+prefix") for dtype in (FLOAT32, BFLOAT16)]
    found = [(each.dtype, each.strategy, each.batch_tokens) for each in measure(reading, wanted)]
    other_attention = layout.startswith(("mistral", "gemma2", "gemma3"))  # windows, or soft caps
    unfit = {"packed+prefix"} if other_attention else {BFLOAT16} if layout == "gpt2" else set()
    assert found == [setting for setting in wanted if not unfit.intersection(setting[:2])]
    assert len(reading.prompt.prefix) == len(prompt.prefix)
    assert [record for record in caplog.records if record.name == "ticket_etl"] == []


@pytest.mark.parametrize("layout", ["bert", "roberta"])
def test_stand_in_of_an_encoder(layout: str, tmp_path: Path) -> None:
    tokenizer = tiny_encoder_tokenizer()
    save_encoder(tmp_path)
    prompt = build_encoder_prompt(tokenizer, LABELS, 62)
    reading = stand_in(tiny_encoder(layout, tokenizer), folder_of("encoder", tmp_path), prompt, reads_labels=False)
    assert isinstance(reading.model, EncoderModel)
    assert [each.strategy for each in measure(reading, [(FLOAT32, "packed", 512)])] == ["packed"]


def save_encoder(folder: Path) -> None:
    """What `read_pooling` looks at."""
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "max_position_embeddings": 64}))


def test_stand_in_leaves_random_numbers_alone(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model, prompt = tiny_model("qwen2", tokenizer), build_prompt(tokenizer, LABELS)
    state = torch.random.get_rng_state()
    stand_in(model, folder_of("causal", tmp_path), prompt, reads_labels=True)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_measuring_stops_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is always timed."""
    clock = itertools.count()
    monkeypatch.setattr(tuning.time, "monotonic", lambda: float(next(clock)))
    tokenizer = tiny_tokenizer()
    reading = stand_in(
        tiny_model("qwen2", tokenizer),
        folder_of("causal", tmp_path),
        build_prompt(tokenizer, LABELS),
        reads_labels=True,
    )
    wanted = [(FLOAT32, "packed+prefix", tokens) for tokens in (2048, 1024, 512)]
    assert [each.batch_tokens for each in measure(reading, wanted)] == [2048]


def test_made_up_tickets_are_long_tailed_and_the_same_every_time() -> None:
    tickets = made_up_tickets(50_000, 10)
    lengths = np.array([len(ticket) for ticket in tickets])
    assert int(lengths.sum()) + 10 * len(lengths) <= 50_000
    assert 45 < np.median(lengths) < 75
    assert lengths.max() > 5 * np.median(lengths)
    again = made_up_tickets(50_000, 10)
    assert all((one == other).all() for one, other in zip(tickets, again, strict=True))


# --- once per machine and model --------------------------------------------------------------------------------------


class Clockwork:
    """A measurement with a known outcome, that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.disturbed = False
        self.found = speeds(f2048=1.0, f1024=0.5, b2048=2.0)

    def __call__(self, reading: object, wanted: object) -> tuple[Speed, ...] | None:
        self.calls += 1
        return None if self.disturbed else tuple(self.found)


@pytest.fixture
def clockwork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    stand_in = Clockwork()
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "measure_undisturbed", stand_in)
    monkeypatch.setattr(tuning, "_WORTH_MEASURING", 0)
    return stand_in


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    return find_model(str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def tuned(folder: ModelFolder, **given: object) -> Tuning:
    return Scoring(ScoringConfig(input="", **given), LABELS, folder).tuning  # type: ignore[arg-type]


def test_measured_once_and_kept(clockwork: Clockwork, model_folder: ModelFolder) -> None:
    """The second run chooses the same without measuring; another prompt length or request is measured anew."""
    first, second = tuned(model_folder), tuned(model_folder)
    assert (first.source, second.source) == ("measured", "kept")
    assert (first.dtype, first.batch_tokens) == (second.dtype, second.batch_tokens) == (FLOAT32, 1024)
    assert first.speeds == second.speeds == tuple(clockwork.found)
    assert clockwork.calls == 1
    longer = LabelSet((*LABELS.labels, Label("something else altogether")), system="Sort.")
    Scoring(ScoringConfig(input=""), longer, model_folder)
    assert clockwork.calls == 2
    tuned(model_folder, dtype="float32")
    assert clockwork.calls == 3


def test_disturbed_measurement_stands_for_the_defaults_until_tomorrow(
    clockwork: Clockwork, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a run and its resumption choose the same, and no night is slower for ever."""
    clockwork.disturbed = True
    for _ in range(2):
        found = tuned(model_folder)
        assert (found.source, found.strategy, found.batch_tokens) == ("defaults", "packed+prefix", 2048)
    assert clockwork.calls == 1
    clockwork.disturbed = False
    assert tuned(model_folder).source == "defaults"
    monkeypatch.setattr(tuning, "_today", lambda: "2100-01-01")
    assert (tuned(model_folder).source, tuned(model_folder).source) == ("measured", "kept")
    assert clockwork.calls == 2


@pytest.mark.parametrize(("processor_seconds", "is_believed"), [(19.0, True), (16.0, True), (14.0, False)])
def test_other_work_disturbs(monkeypatch: pytest.MonkeyPatch, processor_seconds: float, is_believed: bool) -> None:
    """Of ten seconds on two threads."""
    wall, used = iter([100.0, 110.0]), iter([5.0, 5.0 + processor_seconds])
    monkeypatch.setattr(tuning.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(tuning.time, "process_time", lambda: next(used))
    monkeypatch.setattr(tuning.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(tuning, "measure", lambda *_: (Speed(FLOAT32, "packed", 1, 1.0),))
    assert (measure_undisturbed(None, []) is not None) is is_believed  # type: ignore[arg-type]


def test_settings_reach_the_scorer(clockwork: Clockwork, model_folder: ModelFolder) -> None:
    clockwork.found = speeds(f2048=1.0, b2048=0.9, b512=0.3)
    scoring = Scoring(ScoringConfig(input=""), LABELS, model_folder)
    assert scoring.dtype == torch.bfloat16
    assert scoring.model.is_low_precision
    assert scoring.limits.batch_tokens == 512
    assert scoring.certifier() is not None


def test_nothing_is_measured_when_all_is_given(clockwork: Clockwork, model_folder: ModelFolder) -> None:
    given = tuned(model_folder, dtype="float32", strategy="bucketed", max_batch_tokens=300)
    assert (given.dtype, given.strategy, given.batch_tokens, given.source) == (FLOAT32, "bucketed", 300, "given")
    assert clockwork.calls == 0


def test_without_certification_auto_is_float32(clockwork: Clockwork, model_folder: ModelFolder) -> None:
    clockwork.found = speeds(f2048=1.0, b2048=0.1)
    assert tuned(model_folder, certify=False).dtype == FLOAT32
    assert tuned(model_folder).dtype == BFLOAT16


def test_features_are_read_in_float32(clockwork: Clockwork, model_folder: ModelFolder) -> None:
    """Nothing certifies them."""
    clockwork.found = speeds(f2048=1.0, b2048=0.1)
    scoring = Scoring(ScoringConfig(input=""), LABELS, model_folder, features=True)
    assert scoring.dtype == torch.float32
    assert not scoring.model.is_low_precision


def test_small_model_is_not_worth_measuring(
    clockwork: Clockwork, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_WORTH_MEASURING", 1_000_000)
    assert tuned(model_folder).source == "defaults"
    assert clockwork.calls == 0


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"key": 1}', b"\xff\xfe", None], ids=repr)
def test_damaged_file_is_measured_again(
    content: bytes | None, clockwork: Clockwork, model_folder: ModelFolder, tmp_path: Path
) -> None:
    """Also one whose figures are not what they should be."""
    tuned(model_folder)
    (path,) = (tmp_path / "cache" / "tuning").glob("*.json")
    if content is None:
        entry = json.loads(path.read_bytes())
        entry["value"]["speeds"] = [["float32", "packed+prefix", "many", 1.0]]
        content = json.dumps(entry).encode()
    path.write_bytes(content)
    assert tuned(model_folder).source == "measured"
    assert tuned(model_folder).source == "kept"
    assert clockwork.calls == 2


def test_nothing_is_measured_where_nothing_can_be_kept(
    clockwork: Clockwork, model_folder: ModelFolder, tmp_path: Path
) -> None:
    """So that a killed run and its resumption choose the same."""
    (tmp_path / "cache").write_text("not a folder")
    found = tuned(model_folder)
    assert (found.dtype, found.strategy, found.batch_tokens) == (FLOAT32, "packed+prefix", 2048)
    assert found.source == "defaults"
    assert clockwork.calls == 0


def test_measurement_that_fails_leaves_the_defaults(
    clockwork: Clockwork, model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not tried again every night."""

    def fails(*_: object, **__: object) -> None:
        clockwork.calls += 1
        raise ValueError("this architecture cannot be cut down")

    monkeypatch.setattr(tuning, "stand_in", fails)
    for _ in range(2):
        found = tuned(model_folder)
        assert (found.dtype, found.strategy, found.batch_tokens) == (FLOAT32, "packed+prefix", 2048)
        assert (found.source, found.measured_on) == ("defaults", None)
    assert clockwork.calls == 1


def test_kept_facts_are_told_apart_by_their_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path))
    assert kept.keep("things", {"a": 1, "b": [None]}, {"x": 1.5})
    assert kept.recall("things", {"b": [None], "a": 1}) == {"x": 1.5}
    assert kept.recall("things", {"a": 2, "b": [None]}) is None
    assert kept.recall("others", {"a": 1, "b": [None]}) is None
    (path,) = (tmp_path / "things").iterdir()
    path.replace(path.with_name(kept._file_name({"a": 2})))
    assert kept.recall("things", {"a": 2}) is None
