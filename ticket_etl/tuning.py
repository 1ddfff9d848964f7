"""The settings that are `auto`, chosen by a short measurement on the model's own shapes.

Which batches are fastest, and whether bfloat16 pays, depends on the processor, the model and the prompt, and no table
knows them all. So a stand-in is timed: the model's architecture and sizes with one layer of each kind, random weights,
a small vocabulary, the prompt's own length, and made-up tickets of the usual long-tailed lengths. That takes two to
three seconds for a model of 135 million parameters; the outcome is kept, so that it is paid once per machine, model,
prompt length and version, and so that a run that was killed chooses the same again. Where nothing can be kept, nothing
is measured, and the defaults hold. On a GPU they always do: nothing has been measured there.

bfloat16 is chosen only if a certified run gains clearly, what is scored again in float32 counted in. Without
certification `auto` is float32, in which labels are exact.
"""

import copy
import datetime
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ticket_etl import __version__, kept
from ticket_etl.arrays import TokenIds
from ticket_etl.certify import CONFIRMED_SHARE, SAMPLED_SHARE
from ticket_etl.config import AUTO_BATCH_TOKENS, AUTO_BATCH_TOKENS_ELSEWHERE, ScoringConfig
from ticket_etl.encoder_model import EncoderModel
from ticket_etl.head import FeaturePart
from ticket_etl.kernels import BFLOAT16, FLOAT32, PRECISIONS, PrepackedGatedMlp
from ticket_etl.language_model import LanguageModel
from ticket_etl.machine import processor, versions
from ticket_etl.models import ModelFolder
from ticket_etl.models.pooling import read_pooling
from ticket_etl.models.quiet import quiet_libraries
from ticket_etl.plan import Limits
from ticket_etl.prompt import Prompt
from ticket_etl.readings import FeatureReading, LabelReading, Reading
from ticket_etl.scorers import Scorer, build_scorer, score_plan
from ticket_etl.strategies import STRATEGIES, Strategy
from ticket_etl.trie import build_trie

log = logging.getLogger("ticket_etl")

BATCH_TOKENS = (2048, 1024, 4096)
"""Token budgets that are tried, the default first; smaller ones read the weights too often for what they compute."""

ASSUMED_RESCORED_SHARE = 0.15
"""Tickets that certification scores again, as long as no run on this model and prompt has told.

Measured with the embedded model, whose labels are close calls more often than most: 10% to 17%.
"""

_CLEARLY_FASTER = 0.9
"""A certified run in bfloat16 must take less than this share of the time in float32."""

_NOT_JUST_NOISE = 0.9
"""Another setting takes the default's place if it takes less than this share of its time."""

_WORTH_MEASURING = 1_000_000
"""Parameters a token is multiplied by; tickets go through a smaller model faster than it could be measured."""

_UNDISTURBED = 0.75
"""Of the time of its threads, what a measurement must have had the processor for; other work took the rest."""

_WORTH_TIMING_AGAIN = 1.25
"""What took longer than this, relative to the best, is timed once only."""

_SECONDS = 2.5
"""When to stop timing; a large model takes longer, since the default itself is always timed."""

_ROUNDS = 3
_SAMPLE_TOKENS = 4096
_MEDIAN_TOKENS, _SPREAD, _LONGEST = 60, 0.9, 600
"""Of the made-up tickets: log-normal lengths, cut off."""

_VOCABULARY = 512


@dataclass(frozen=True)
class Speed:
    """How long the stand-in took for the made-up tickets.

    dtype: of matrix products.
    """

    dtype: str
    strategy: str
    batch_tokens: int
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """The settings of a run, and where they come from.

    source: `measured` now, `kept` from an earlier run, `defaults` (nothing to measure, or nowhere to keep it), or
        `given` by the user.
    measured_on, seconds: the day of the measurement (UTC, ISO 8601) and what it took.
    """

    dtype: str
    strategy: str
    batch_tokens: int
    source: str
    speeds: tuple[Speed, ...] = ()
    measured_on: str | None = None
    seconds: float = 0.0

    @property
    def bfloat16_speedup(self) -> float | None:
        """How much faster bfloat16 is than float32, each at its best, certification aside; None if not measured."""
        best = {each.dtype: each.seconds for each in sorted(self.speeds, key=lambda each: -each.seconds)}
        return best[FLOAT32] / best[BFLOAT16] if best.keys() >= {FLOAT32, BFLOAT16} else None

    def summary(self) -> dict[str, Any]:
        """The figures of the report."""
        speeds = [asdict(each) for each in self.speeds]
        return asdict(self) | {"speeds": speeds, "bfloat16_speedup": self.bfloat16_speedup}


def defaults(config: ScoringConfig, device: str, kind: str) -> Tuning:
    """What was asked for, and where nothing was, what suits most machines."""
    tokens = config.max_batch_tokens or AUTO_BATCH_TOKENS.get(device, AUTO_BATCH_TOKENS_ELSEWHERE)
    packed = "packed+prefix" if kind == "causal" else "packed"
    dtype = FLOAT32 if config.dtype == "auto" else config.dtype
    strategy = packed if config.strategy == "auto" else config.strategy
    is_given = "auto" not in (config.dtype, config.strategy) and config.max_batch_tokens is not None
    return Tuning(dtype, strategy, tokens, "given" if is_given else "defaults")


def tune(
    config: ScoringConfig,
    folder: ModelFolder,
    model: PreTrainedModel,
    prompt: Prompt,
    *,
    reads_labels: bool,
    rescored_share: float | None,
) -> Tuning:
    """Choose what is `auto`, by a measurement that is kept.

    Args:
        model: the loaded model, whose architecture and sizes are copied.
        prompt: the real prompt; only its lengths matter.
        reads_labels: whether labels are read by decoding, not from hidden states.
        rescored_share: share of the tickets that certification scored again in earlier runs, if there were any.
    """
    fixed = defaults(config, model.device.type, folder.kind)
    if fixed.source == "given" or model.device.type != "cpu" or _parameters(model) < _WORTH_MEASURING:
        return fixed
    if config.dtype == "auto" and not config.certify:
        config = replace(config, dtype=FLOAT32)
    key = {
        "asked": [config.dtype, config.strategy, config.max_batch_tokens],
        "model": folder.revision,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "prompt": [len(prompt.prefix), len(prompt.suffix), len(prompt.trie.nodes), prompt.piece_tokens],
        "reads_labels": reads_labels,
        "versions": {name: versions()[name] for name in ("torch", "transformers")} | {"ticket-etl": __version__},
    }
    source = "kept"
    speeds = _recall(key)
    if speeds is None:
        with kept.one_at_a_time(_KIND) as can_keep:
            speeds = _recall(key) if can_keep else None
            if can_keep and speeds is None:
                source = "measured"
                speeds = _measure_and_keep(key, config, fixed, folder, model, prompt, reads_labels)
    if speeds is None or not speeds.speeds:
        return fixed
    chosen = choose(speeds.speeds, fixed, config.dtype, rescored_share)
    return replace(chosen, source=source, measured_on=speeds.measured_on, seconds=speeds.seconds)


_KIND = "tuning"


@dataclass(frozen=True)
class _Measured:
    speeds: tuple[Speed, ...]
    measured_on: str
    seconds: float


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _recall(key: kept.Key) -> _Measured | None:
    value = kept.recall(_KIND, key)
    if value is None or (value.get("disturbed") and value.get("measured_on") != _today()):
        return None
    try:
        return _Measured(
            tuple(Speed(str(d), str(s), int(t), float(seconds)) for d, s, t, seconds in value["speeds"]),
            str(value["measured_on"]),
            float(value["seconds"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _measure_and_keep(
    key: kept.Key,
    config: ScoringConfig,
    fixed: Tuning,
    folder: ModelFolder,
    model: PreTrainedModel,
    prompt: Prompt,
    reads_labels: bool,
) -> _Measured | None:
    start = time.monotonic()
    log.info("measuring which settings suit this machine (once; --dtype, --strategy, --max-batch-tokens override)")
    speeds: tuple[Speed, ...] | None = ()
    try:
        reading = stand_in(model, folder, prompt, reads_labels=reads_labels)
        speeds = measure_undisturbed(reading, contestants(config, fixed))
    except Exception as error:  # an architecture that cannot be cut down is no reason to stop
        log.debug("nothing measured: %s: %s", type(error).__name__, error)
    if speeds is None:
        log.info("other work kept this machine busy: the defaults hold, and it is measured again tomorrow")
    found = _Measured(speeds or (), _today(), round(time.monotonic() - start, 2))
    rows = [[each.dtype, each.strategy, each.batch_tokens, each.seconds] for each in found.speeds]
    # Kept even so, for today: a run that is killed and resumed must choose the same.
    value = {"speeds": rows, "measured_on": found.measured_on, "seconds": found.seconds, "disturbed": speeds is None}
    return found if kept.keep(_KIND, key, value) else None


def choose(speeds: Sequence[Speed], fixed: Tuning, dtype: str, rescored_share: float | None) -> Tuning:
    """The fastest of what was measured.

    In bfloat16 each ticket costs its own pass and, if it is sampled or scored again, one in float32:

        seconds(bfloat16) + (sampled share + re-scored share) * seconds(float32)  <  0.9 * seconds(float32)

    Args:
        dtype: the one that was asked for, or `auto`.
        rescored_share: as in `tune`.
    """
    best = {name: _fastest([each for each in speeds if each.dtype == name], fixed) for name in PRECISIONS}
    chosen = best.get(fixed.dtype)
    exact, low = best[FLOAT32], best[BFLOAT16]
    if dtype == "auto" and exact is not None and low is not None:
        again = SAMPLED_SHARE + ASSUMED_RESCORED_SHARE if rescored_share is None else CONFIRMED_SHARE + rescored_share
        if low.seconds + again * exact.seconds < _CLEARLY_FASTER * exact.seconds:
            chosen = low
    if chosen is None:
        return replace(fixed, speeds=tuple(speeds))
    return Tuning(chosen.dtype, chosen.strategy, chosen.batch_tokens, "measured", tuple(speeds))


def _fastest(speeds: Sequence[Speed], fixed: Tuning) -> Speed | None:
    """The fastest, or the default if that is hardly slower: a choice that noise makes would be another every time."""
    best = min(speeds, key=lambda each: each.seconds, default=None)
    for each in speeds:
        is_default = (each.strategy, each.batch_tokens) == (fixed.strategy, fixed.batch_tokens)
        if best is not None and is_default and best.seconds >= _NOT_JUST_NOISE * each.seconds:
            return each
    return best


def contestants(config: ScoringConfig, fixed: Tuning) -> list[tuple[str, str, int]]:
    """What is timed, the default first: dtype, strategy, tokens a batch."""
    dtypes = PRECISIONS if config.dtype == "auto" else (fixed.dtype,)
    budgets = BATCH_TOKENS if config.max_batch_tokens is None else (fixed.batch_tokens,)
    found = [(dtype, fixed.strategy, tokens) for tokens in budgets for dtype in dtypes]
    if config.strategy == "auto":
        found.append((dtypes[0], STRATEGIES[fixed.strategy].padded.name, budgets[0]))
    return found


def measure_undisturbed(reading: Reading, wanted: Sequence[tuple[str, str, int]]) -> tuple[Speed, ...] | None:
    """See `measure`; None if other work had the processor for much of the time, and nothing is to be believed."""
    start, used = time.monotonic(), time.process_time()
    speeds = measure(reading, wanted)
    share = (time.process_time() - used) / ((time.monotonic() - start) * torch.get_num_threads())
    log.debug("measured with %.0f%% of the processor", 100 * share)
    return speeds if share >= _UNDISTURBED else None


def measure(reading: Reading, wanted: Sequence[tuple[str, str, int]]) -> tuple[Speed, ...]:
    """Time settings on made-up tickets, in turn, until there are enough rounds or time is up.

    The least time of each counts, since whatever disturbs only adds. What this model or machine cannot do is left out.
    """
    end = time.monotonic() + _SECONDS
    layout_tokens = len(reading.prompt.suffix) + len(reading.prompt.trie.nodes)
    tickets = made_up_tickets(_SAMPLE_TOKENS, layout_tokens)
    scorers: dict[tuple[str, str], tuple[Strategy, Scorer]] = {}
    seconds: dict[tuple[str, str, int], list[float]] = {}
    for number in range(_ROUNDS):
        best = min((min(times) for times in seconds.values()), default=float("inf"))
        for setting in wanted:
            if seconds and time.monotonic() > end:
                break
            dtype, name, tokens = setting
            if number and (setting not in seconds or min(seconds[setting]) > _WORTH_TIMING_AGAIN * best):
                continue
            if (dtype, name) not in scorers:
                if dtype == BFLOAT16 and not reading.at(dtype).model.is_low_precision:
                    continue
                with _silence():
                    scorers[dtype, name] = build_scorer(STRATEGIES[name], reading.at(dtype))
                score_plan(scorers[dtype, name][1], scorers[dtype, name][0], Limits(batch_tokens=tokens), tickets[:4])
            strategy, scorer = scorers[dtype, name]
            if strategy.name == name:
                start = time.monotonic()
                score_plan(scorer, strategy, Limits(batch_tokens=tokens), tickets)
                seconds.setdefault(setting, []).append(time.monotonic() - start)
    return tuple(Speed(*setting, round(min(times), 6)) for setting, times in seconds.items())


def made_up_tickets(tokens: int, own_tokens: int, seed: int = 0) -> list[TokenIds]:
    """Random tickets of long-tailed lengths, that hold so many tokens together.

    Args:
        own_tokens: what each holds beside its text (the suffix).
    """
    random = np.random.default_rng(seed)
    tickets: list[TokenIds] = []
    while tokens > own_tokens:
        drawn = round(float(random.lognormal(np.log(_MEDIAN_TOKENS), _SPREAD)))
        length = int(np.clip(drawn, 1, min(_LONGEST, tokens - own_tokens)))
        tickets.append(random.integers(0, _VOCABULARY, length).astype(np.int32))
        tokens -= length + own_tokens
    return tickets


def stand_in(model: PreTrainedModel, folder: ModelFolder, prompt: Prompt, *, reads_labels: bool) -> Reading:
    """A reading of the same shapes that costs a layer or two: random weights, a vocabulary of 512 and the labels."""
    config = copy.deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    kinds = list(dict.fromkeys(getattr(text, "layer_types", None) or ()))
    layers = max(1, len(kinds))
    text.num_hidden_layers = layers
    if kinds:
        text.layer_types = kinds
    tokens = sorted({token for sequence in prompt.sequences for token in sequence}) if reads_labels else []
    text.vocab_size = _VOCABULARY + len(tokens)
    text.pad_token_id = None
    with torch.random.fork_rng(devices=[]), quiet_libraries(offline=True):
        torch.manual_seed(0)
        small = type(model)._from_config(
            config, dtype=torch.float32, attn_implementation=model.config._attn_implementation
        )
    small.requires_grad_(False).eval()
    like = replace(prompt, prefix=prompt.prefix % _VOCABULARY, suffix=prompt.suffix % _VOCABULARY).without_branches()
    if folder.kind == "encoder":
        pooling = read_pooling(folder)
        encoder = EncoderModel(small, pooling.first_position, PRECISIONS)
        return FeatureReading(encoder, like, (FeaturePart(pooling.mode, layers),))
    if reads_labels:
        number = {token: _VOCABULARY + place for place, token in enumerate(tokens)}
        sequences = tuple(tuple(number[token] for token in sequence) for sequence in prompt.sequences)
        like = replace(like, sequences=sequences, trie=build_trie(sequences))
    network = LanguageModel(small, like.trie, PRECISIONS)
    for module in small.modules():
        if isinstance(module, PrepackedGatedMlp):
            module.is_last = False  # a layer like all the others of the whole model
    if reads_labels:
        return LabelReading(network, like)
    return FeatureReading(network, like, (FeaturePart("mean", layers), FeaturePart("last", layers)))


def _parameters(model: PreTrainedModel) -> int:
    embeddings = {id(table.weight) for table in model.modules() if isinstance(table, torch.nn.Embedding)}
    return sum(each.numel() for each in model.parameters() if id(each) not in embeddings)


@contextmanager
def _silence() -> Iterator[None]:
    """What does not fit is said of the model itself, not of its stand-in."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
