"""`ticket-etl bench`: every strategy on the same tickets, interleaved in one process.

Rounds go over all contestants in turn, so that a slow minute of the machine hits all alike; medians of the rounds are
compared. A first, shorter pass warms up and is not counted. The baseline is what everybody writes first, and the
reference: each ticket alone with the full prompt, on the model's own float32 layers. Below float32 the time includes
certification as in a window of a long run whose drift is known: 1/64 of the tickets is sampled, and every ticket whose
margin is under the bound is scored again. The limit is the machine's own matrix rate at the model's shapes: a ticket
needs at least 2 x parameters x its own tokens operations, and the prefix needs them once.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.certify import Certifier, drift
from ticket_etl.config import ScoringConfig
from ticket_etl.drift_profile import DriftProfile
from ticket_etl.errors import EXIT_DISAGREEMENT
from ticket_etl.kernels import FLOAT32
from ticket_etl.machine import matrix_rate
from ticket_etl.network import Network
from ticket_etl.plan import Limits, computed_tokens, padding_fraction
from ticket_etl.preflight import Request, read_request
from ticket_etl.readings import Reading
from ticket_etl.scorers import Scorer, build_scorer, reference_scores, score_plan
from ticket_etl.scoring import Scoring
from ticket_etl.strategies import REFERENCE, STRATEGIES, Strategy
from ticket_etl.verify import compare
from ticket_etl.workload import read_workload

_WARM_UP_TICKETS = 8
PLAIN = "plain"
"""The dtype's name where the model's own float32 layers are used, without prepacked weights."""


@dataclass(frozen=True)
class BenchRow:
    """One contestant's figures; fractions between 0 and 1, drift in log-probability.

    layers: `plain` are the model's own, `prepacked` those of `kernels`.
    certified: whether the time includes certification, and labels and drift are those after it.
    """

    strategy: str
    prefix: bool
    dtype: str
    layers: str
    certified: bool
    tickets_per_second: float
    speedup_vs_per_item: float
    computed_tokens: int
    padding_fraction: float
    limit_fraction: float
    agreement: float
    max_drift: float

    @property
    def precision(self) -> str:
        """The dtype as the table has it."""
        return f"{self.dtype}{', certified' if self.certified else ''}{', plain' if self.layers == PLAIN else ''}"


@dataclass(frozen=True)
class BenchTable:
    """The comparison, with the conditions it was made under; matrix_gflops is by dtype."""

    model: str
    device: str
    threads: int
    labels: int
    prefix_tokens: int
    tickets: int
    of_tickets: int
    ticket_tokens: dict[str, int]
    batch_tickets: int
    batch_tokens: int
    repeats: int
    matrix_gflops: dict[str, float]
    rows: tuple[BenchRow, ...]

    @property
    def exit_code(self) -> int:
        """0 if every strategy agrees with the reference on every ticket."""
        return 0 if all(row.agreement == 1.0 for row in self.rows) else EXIT_DISAGREEMENT

    @property
    def conditions(self) -> str:
        """Model, machine and tickets, in a line."""
        tokens = self.ticket_tokens
        rates = ", ".join(f"{rate:.0f} in {dtype}" for dtype, rate in self.matrix_gflops.items())
        return (
            f"{self.model} on {self.device}, {self.threads} threads; {self.tickets} of {self.of_tickets} distinct"
            " tickets, a seeded sample stratified by length"
            f" (tokens: median {tokens['median']}, mean {tokens['mean']}, longest {tokens['longest']});"
            f" {self.labels} labels, {self.prefix_tokens} prefix tokens; batches of {self.batch_tickets} tickets or"
            f" {self.batch_tokens:,} tokens; medians of {self.repeats} rounds; matrix products {rates} GFLOP/s"
        )

    def to_json(self) -> str:
        """The table as strict JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    def __str__(self) -> str:
        lines = [
            self.conditions,
            "",
            "| strategy | dtype | tickets/s | vs per-item | computed tokens | padding | of limit | agreement | drift |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.strategy} | {row.precision} | {row.tickets_per_second:.2f} | {row.speedup_vs_per_item:.2f}x"
            f" | {row.computed_tokens:,} | {row.padding_fraction:.1%} | {row.limit_fraction:.0%} | {row.agreement:.1%}"
            f" | {row.max_drift:.1e} |"
            for row in self.rows
        ]
        return "\n".join(lines)


@dataclass
class _Contestant:
    """A strategy in a dtype; `score` is what is timed."""

    strategy: Strategy
    scorer: Scorer
    dtype: str
    layers: str
    certified: bool
    score: Callable[[Sequence[TokenIds]], FloatArray]
    seconds: list[float]
    scores: FloatArray


def bench_input(
    config: ScoringConfig,
    sample: int,
    repeats: int,
    names: Sequence[str],
    dtypes: Sequence[str],
    on_progress: Callable[[int, int], None],
) -> BenchTable:
    """Time strategies on a seeded, length-stratified sample of the input; plain `per-item` is always among them.

    Args:
        dtypes: `auto` stands for float32 and, where the machine has it, bfloat16.

    Raises:
        UsageError, ModelError: see `read_request` and `Scoring`.
        InputError: IN cannot be read, or holds no text.
    """
    request = read_request(config)
    workload = read_workload(config)
    scorings = _open(config, request, dtypes)
    scoring = scorings[0]
    encoded = workload.encode(scoring.encoder)
    tickets = [encoded[index].ids for index in workload.sample(encoded, sample, config.seed)]
    contestants = list(_contestants(scorings, names, dtypes, tickets, config.seed))
    steps = len(contestants) * (repeats + 1) + 1
    warm_up = sorted(tickets, key=len)[:_WARM_UP_TICKETS]
    for number, each in enumerate(contestants):
        each.score(warm_up)
        on_progress(number + 1, steps)
    for number in range(repeats):
        for index, each in enumerate(contestants):
            start = time.monotonic()
            each.scores = each.score(tickets)
            each.seconds.append(time.monotonic() - start)
            on_progress(len(contestants) * (number + 1) + index + 1, steps)
    expected = reference_scores(scoring.reference, tickets)
    on_progress(steps, steps)
    lengths = np.array([len(ticket) for ticket in tickets])
    prompt, model = scoring.prompt, scoring.model
    needed = (
        2.0
        * model.parameters_per_token()
        * (int(lengths.sum()) + len(tickets) * len(prompt.suffix) + len(prompt.prefix))
    )
    rates = {dtype: machine_rate(model, dtype) for dtype in dict.fromkeys(each.dtype for each in contestants)}
    alone = statistics.median(contestants[0].seconds)
    return BenchTable(
        model=request.folder.name,
        device=str(model.device),
        threads=scoring.threads,
        labels=len(request.labels.names),
        prefix_tokens=len(prompt.prefix),
        tickets=len(tickets),
        of_tickets=len(encoded),
        ticket_tokens={
            "median": int(np.median(lengths)),
            "mean": round(float(lengths.mean())),
            "longest": int(lengths.max()),
        },
        batch_tickets=scoring.limits.batch_tickets,
        batch_tokens=scoring.limits.batch_tokens,
        repeats=repeats,
        matrix_gflops={dtype: rate / 1e9 for dtype, rate in rates.items()},
        rows=tuple(
            _row(each, scoring.limits, tickets, expected, alone, needed / rates[each.dtype]) for each in contestants
        ),
    )


def _open(config: ScoringConfig, request: Request, dtypes: Sequence[str]) -> list[Scoring]:
    """One model for each dtype below float32, which has the float32 one within; else one in float32."""
    wanted = dict.fromkeys(
        each for dtype in dtypes for each in ((FLOAT32, "bfloat16") if dtype == "auto" else (dtype,))
    )
    low = [dtype for dtype in wanted if dtype != FLOAT32] or [FLOAT32]
    return [Scoring(replace(config, dtype=dtype), request.labels, request.folder, head=request.head) for dtype in low]


def _contestants(
    scorings: Sequence[Scoring], names: Sequence[str], dtypes: Sequence[str], tickets: Sequence[TokenIds], seed: int
) -> Iterator[_Contestant]:
    """Plain `per-item`, then every strategy in every dtype; what had to give way would only be timed twice."""
    exact = scorings[0]
    yield _contestant(exact, REFERENCE, exact.reference, FLOAT32, PLAIN, None)
    readings: list[tuple[Scoring, Reading, Certifier | None]]
    readings = [(exact, exact.exact, None)] if {"auto", FLOAT32} & set(dtypes) else []
    for scoring in scorings:
        if scoring.model.is_low_precision:
            readings.append((scoring, scoring.reading, _certifier(scoring, tickets, seed)))
    for scoring, reading, certifier in readings:
        dtype = scoring.dtype_name if reading is scoring.reading else FLOAT32
        for name in dict.fromkeys(names):
            strategy, scorer = build_scorer(STRATEGIES[name], reading)
            if strategy.name == name:
                yield _contestant(scoring, strategy, scorer, dtype, "prepacked", certifier)


def _contestant(
    scoring: Scoring, strategy: Strategy, scorer: Scorer, dtype: str, layers: str, certifier: Certifier | None
) -> _Contestant:
    def score(tickets: Sequence[TokenIds]) -> FloatArray:
        scores = score_plan(scorer, strategy, scoring.limits, tickets)
        return scores if certifier is None else certifier.certify(scores, tickets)

    nothing = np.empty((0, 0), dtype=np.float32)
    return _Contestant(strategy, scorer, dtype, layers, certifier is not None, score, [], nothing)


def _certifier(scoring: Scoring, tickets: Sequence[TokenIds], seed: int) -> Certifier | None:
    """A certifier that knows the drift of these tickets and samples no more than its share of them."""
    if scoring.certifier() is None:
        return None
    low = score_plan(scoring.scorer, scoring.strategy, scoring.limits, tickets)
    drifts = drift(low, scoring.exact_scores(tickets))
    profile = DriftProfile.of(drifts.tolist(), today="")
    # Another strategy's drift may be a little larger: the bound allows for that.
    return Certifier(scoring.exact_scores, seed, replace(profile, drift_max=profile.bound), least=1)


def _row(
    each: _Contestant,
    limits: Limits,
    tickets: Sequence[TokenIds],
    expected: FloatArray,
    alone: float,
    limit_seconds: float,
) -> BenchRow:
    layout = each.scorer.layout
    lengths = layout.lengths(tickets)
    bounded = Limits(limits.batch_tickets, limits.batch_tokens, layout.shared_tokens)
    computed = computed_tokens(each.strategy.planner(lengths, bounded))
    seconds = statistics.median(each.seconds)
    outcome = compare(each.scores, expected)
    return BenchRow(
        strategy=each.strategy.name,
        prefix=each.strategy.shares_prefix,
        dtype=each.dtype,
        layers=each.layers,
        certified=each.certified,
        tickets_per_second=len(tickets) / seconds,
        speedup_vs_per_item=alone / seconds,
        computed_tokens=computed,
        padding_fraction=padding_fraction(int(lengths.sum()), computed),
        limit_fraction=limit_seconds / seconds,
        agreement=float(outcome.agrees.mean()),
        max_drift=outcome.max_drift,
    )


def machine_rate(model: Network, dtype: str) -> float:
    """Operations per second of this machine, over the model's own matrices in their numbers and a dtype."""
    operations = seconds = 0.0
    for (outputs, inputs), count in model.matrix_shapes().items():
        work = count * 2.0 * outputs * inputs
        operations += work
        seconds += work / matrix_rate(outputs, inputs, dtype=dtype, device=model.device.type)
    return operations / seconds
