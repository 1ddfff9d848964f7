"""`ticket-etl bench`: every strategy on the same tickets, interleaved in one process.

Rounds go over all strategies in turn, so that a slow minute of the machine hits all alike; medians of the rounds are
compared. A first, shorter pass warms up and is not counted. The limit is the machine's own matrix rate at the model's
shapes: a ticket needs at least 2 x parameters x its own tokens operations, and the prefix needs them once.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ticket_etl.config import ScoringConfig
from ticket_etl.errors import EXIT_DISAGREEMENT
from ticket_etl.machine import matrix_rate
from ticket_etl.plan import Limits, computed_tokens, padding_fraction
from ticket_etl.preflight import check_request
from ticket_etl.prompt import TokenIds
from ticket_etl.scorers import Scorer, build_scorer, score_plan
from ticket_etl.scoring import Scoring
from ticket_etl.strategies import REFERENCE, STRATEGIES, Strategy
from ticket_etl.verify import compare, reference_scores
from ticket_etl.workload import read_workload

_WARM_UP_TICKETS = 8


@dataclass(frozen=True)
class BenchRow:
    """One strategy's figures; fractions between 0 and 1, drift in log-probability."""

    strategy: str
    prefix: bool
    dtype: str
    tickets_per_second: float
    speedup_vs_per_item: float
    computed_tokens: int
    padding_fraction: float
    limit_fraction: float
    agreement: float
    max_drift: float


@dataclass(frozen=True)
class BenchTable:
    """The comparison, with the conditions it was made under."""

    model: str
    device: str
    threads: int
    labels: int
    prefix_tokens: int
    tickets: int
    of_tickets: int
    ticket_tokens: dict[str, int]
    repeats: int
    matrix_gflops: float
    rows: tuple[BenchRow, ...]

    @property
    def exit_code(self) -> int:
        """0 if every strategy agrees with the reference on every ticket."""
        return 0 if all(row.agreement == 1.0 for row in self.rows) else EXIT_DISAGREEMENT

    def to_json(self) -> str:
        """The table as strict JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    def __str__(self) -> str:
        tokens = self.ticket_tokens
        lines = [
            f"{self.model} on {self.device}, {self.threads} threads; {self.tickets} of {self.of_tickets} distinct"
            f" tickets (tokens: median {tokens['median']}, mean {tokens['mean']}, longest {tokens['longest']});"
            f" {self.labels} labels, {self.prefix_tokens} prefix tokens; medians of {self.repeats} rounds;"
            f" matrix products {self.matrix_gflops:.0f} GFLOP/s",
            "",
            "| strategy | dtype | tickets/s | vs per-item | computed tokens | padding | of limit | agreement | drift |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.strategy} | {row.dtype} | {row.tickets_per_second:.2f} | {row.speedup_vs_per_item:.2f}x"
            f" | {row.computed_tokens:,} | {row.padding_fraction:.1%} | {row.limit_fraction:.0%} | {row.agreement:.1%}"
            f" | {row.max_drift:.1e} |"
            for row in self.rows
        ]
        return "\n".join(lines)


@dataclass
class _Contestant:
    strategy: Strategy
    scorer: Scorer
    seconds: list[float]


def bench_input(
    config: ScoringConfig, sample: int, repeats: int, names: Sequence[str], on_progress: Callable[[int, int], None]
) -> BenchTable:
    """Time strategies on a seeded, length-stratified sample of the input; `per-item` is always among them."""
    request = check_request(config)
    labels, folder = request.labels, request.folder
    workload = read_workload(config)
    scoring = Scoring(config, labels, folder, head=request.head)
    encoded = workload.encode(scoring.encoder)
    tickets = [encoded[index].ids for index in workload.sample(encoded, sample, config.seed)]
    prompt, model = scoring.prompt, scoring.model
    contestants = []
    for name in dict.fromkeys([REFERENCE.name, *names]):
        strategy, scorer = build_scorer(STRATEGIES[name], scoring.reading)
        if strategy.name == name:  # what had to give way would only be timed twice
            contestants.append(_Contestant(strategy, scorer, []))
    steps = len(contestants) * (repeats + 1) + 1
    scores = {}
    warm_up = sorted(tickets, key=len)[:_WARM_UP_TICKETS]
    for each in contestants:
        scores[each.strategy.name] = score_plan(each.scorer, each.strategy, scoring.limits, warm_up)
        on_progress(len(scores), steps)
    for number in range(repeats):
        for index, each in enumerate(contestants):
            start = time.monotonic()
            scores[each.strategy.name] = score_plan(each.scorer, each.strategy, scoring.limits, tickets)
            each.seconds.append(time.monotonic() - start)
            on_progress(len(contestants) * (number + 1) + index + 1, steps)
    expected = reference_scores(scoring.reference, tickets)
    on_progress(steps, steps)
    lengths = np.array([len(ticket) for ticket in tickets])
    rate = machine_rate(scoring)
    needed = (
        2.0
        * model.parameters_per_token()
        * (int(lengths.sum()) + len(tickets) * len(prompt.suffix) + len(prompt.prefix))
    )
    alone = statistics.median(contestants[0].seconds)
    return BenchTable(
        model=folder.name,
        device=str(model.device),
        threads=scoring.threads,
        labels=len(labels.names),
        prefix_tokens=len(prompt.prefix),
        tickets=len(tickets),
        of_tickets=len(encoded),
        ticket_tokens={
            "median": int(np.median(lengths)),
            "mean": round(float(lengths.mean())),
            "longest": int(lengths.max()),
        },
        repeats=repeats,
        matrix_gflops=rate / 1e9,
        rows=tuple(
            _row(each, scoring, tickets, scores[each.strategy.name], expected, alone, needed / rate)
            for each in contestants
        ),
    )


def _row(
    each: _Contestant,
    scoring: Scoring,
    tickets: Sequence[TokenIds],
    scores: np.ndarray,
    expected: np.ndarray,
    alone: float,
    limit_seconds: float,
) -> BenchRow:
    layout = each.scorer.layout
    lengths = layout.lengths(tickets)
    limits = Limits(scoring.limits.batch_tickets, scoring.limits.batch_tokens, layout.shared_tokens)
    computed = computed_tokens(each.strategy.planner(lengths, limits))
    seconds = statistics.median(each.seconds)
    outcome = compare(scores, expected)
    return BenchRow(
        strategy=each.strategy.name,
        prefix=each.strategy.shares_prefix,
        dtype=str(scoring.dtype).removeprefix("torch."),
        tickets_per_second=len(tickets) / seconds,
        speedup_vs_per_item=alone / seconds,
        computed_tokens=computed,
        padding_fraction=padding_fraction(int(lengths.sum()), computed),
        limit_fraction=limit_seconds / seconds,
        agreement=float(outcome.agrees.mean()),
        max_drift=outcome.max_drift,
    )


def machine_rate(scoring: Scoring) -> float:
    """Operations per second of this machine, over the model's own matrices in their numbers and precision."""
    operations = seconds = 0.0
    device, dtype = scoring.model.device.type, str(scoring.dtype).removeprefix("torch.")
    for (outputs, inputs), count in scoring.model.matrix_shapes().items():
        work = count * 2.0 * outputs * inputs
        operations += work
        seconds += work / matrix_rate(outputs, inputs, dtype=dtype, device=device)
    return operations / seconds
