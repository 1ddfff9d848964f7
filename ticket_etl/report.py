"""The report of a run: data first, then the same as text for the terminal and as strict JSON for machines."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ticket_etl.errors import EXIT_PARTIAL
from ticket_etl.plan import padding_fraction
from ticket_etl.strategies import STRATEGIES
from ticket_etl.tally import MARGIN_EDGES, SCORE_EDGES, Tally, quantile
from ticket_etl.verdicts import ABSTAINED, EMPTY, FAILED, OK, TRUNCATED

_NOTED = ("truncated", "abstained", "empty", "failed", "quarantined")
"""Outcomes that the summary names where there are any."""


@dataclass(frozen=True)
class RunReport:
    """What a run did. Times are UTC (ISO 8601), durations seconds of a monotonic clock, fractions between 0 and 1.

    rows: read = labelled + abstained + empty + failed + quarantined; truncated ones are among the labelled.
    tuning: the settings that were `auto`, and the measurement they come from (`tuning.Tuning`).
    labels: of the labelled rows; the histograms hold the abstained ones too.
    drift: how labels and scores compare with an earlier run's (`label_drift.compare_runs`); None where none was named.
    tokens: of the tickets scored in this run; `padding` = computed - real.
    padding_fraction: of this run, and of every strategy's plan for the same tickets.
    """

    version: str
    started: str
    finished: str
    input: str
    output: str
    rows: dict[str, int]
    labels: dict[str, int]
    seconds: dict[str, float]
    throughput: dict[str, float]
    tokens: dict[str, Any]
    padding_fraction: dict[str, Any]
    batches: dict[str, Any]
    score_histogram: list[dict[str, Any]]
    margin_histogram: list[dict[str, Any]]
    certification: dict[str, Any] | None
    tuning: dict[str, Any]
    drift: dict[str, Any] | None
    model: dict[str, Any]
    machine: dict[str, Any]
    settings: dict[str, Any]
    fingerprint: dict[str, str]

    @property
    def exit_code(self) -> int:
        """0, or the code for a run that left tickets failed or quarantined."""
        return EXIT_PARTIAL if self.rows["failed"] or self.rows["quarantined"] else 0

    def to_json(self) -> str:
        """The report as strict JSON (no NaN, no infinity)."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        rows, tokens, padding, speed = self.rows, self.tokens, self.padding_fraction, self.throughput
        notes = [f"{rows[kind]:,} {kind}" for kind in _NOTED if rows[kind]]
        reused = [
            f"{rows[kind]:,} {text}"
            for kind, text in (
                ("duplicates", "duplicates scored once"),
                ("resumed", "rows from the interrupted run"),
                ("cached", "rows from the label cache"),
            )
            if rows[kind]
        ]
        ranking = sorted(self.labels.items(), key=lambda item: -item[1])
        lines = [
            f"tickets     {rows['read']:,} read, {rows['labelled']:,} labelled"
            + "".join(f", {note}" for note in notes),
            *([f"reused      {', '.join(reused)}"] if reused else []),
            f"labels      {'  '.join(f'{name} {count:,}' for name, count in ranking)}",
            f"model       {self.model['name']} ({self.model['revision'][:12]}), {self.machine['dtype']}"
            f" on {self.machine['device']}, {self.machine['threads']} threads",
            f"speed       {speed['scoring_tickets_per_second']:.1f} tickets/s scoring"
            f" ({speed['scoring_tokens_per_second']:,.0f} tokens/s),"
            f" {speed['run_tickets_per_second']:.1f} tickets/s overall",
            *_tuning_lines(self.tuning),
            *_certification_lines(self.certification),
            *_drift_lines(self.drift),
            f"padding     {padding['run']:.1%} with {self.settings['strategy']}"
            f" (naive {padding['naive']:.1%}, arrival order {padding['arrival']:.1%})",
            f"tokens      {tokens['computed']:,} computed, {tokens['prefix_saved']:,} saved by the shared prefix,"
            f" {tokens['duplicate_saved']:,} by duplicates",
            "time        " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in self.seconds.items()),
        ]
        return "\n".join(lines)


def _tuning_lines(tuning: dict[str, Any]) -> list[str]:
    if tuning["measured_on"] is None:
        return []
    speedup = tuning["bfloat16_speedup"]
    return [
        f"tuned       {tuning['dtype']}, {tuning['strategy']}, {tuning['batch_tokens']:,} tokens a batch (measured"
        f" {tuning['measured_on']} in {tuning['seconds']:.1f} s"
        f"{'' if speedup is None else f'; bfloat16 {speedup:.1f}x'})"
    ]


def _certification_lines(certification: dict[str, Any] | None) -> list[str]:
    if certification is None:
        return []
    rate, profile = certification["remaining_disagreement_rate_95"], certification["profile"]
    exact = certification["scored_in_float32_at_once"]
    known = "" if profile is None else f", known from earlier runs: {profile['runs']:,}"
    parts = [f"{exact:,} tickets of small windows scored in float32 at once"] if exact else []
    if certification["sampled"]:
        parts.append(
            f"{certification['rescored']:,} tickets scored again in float32 (margin under {certification['bound']:.3f}"
            f"{known}), labels changed: {certification['labels_changed']:,}"
        )
    if not parts:
        return ["certified   nothing was scored now"]
    return [
        f"certified   {', '.join(parts)}; at most {'?' if rate is None else f'{rate:.2%}'} of labels scored now differ"
        f" from float32 (95%, {certification['verified']:,} verified)"
    ]


def _drift_lines(drift: dict[str, Any] | None) -> list[str]:
    if drift is None:
        return []
    judged = [
        f"{what} PSI {'?' if drift[what]['psi'] is None else format(drift[what]['psi'], '.3f')}"
        f" ({'shifted' if drift[what]['shifted'] else 'no shift'})"
        for what in ("labels", "scores")
    ]
    return [f"drift       {', '.join(judged)} since {drift['report']} of {drift['finished']}"]


def row_counts(tally: Tally, quarantined: int) -> dict[str, int]:
    """The rows of a run by outcome."""
    truncated, abstained, empty, failed = (
        int(tally.statuses[status]) for status in (TRUNCATED, ABSTAINED, EMPTY, FAILED)
    )
    labelled = int(tally.statuses[OK]) + truncated
    return {
        "read": labelled + abstained + empty + failed + quarantined,
        "labelled": labelled,
        "truncated": truncated,
        "abstained": abstained,
        "empty": empty,
        "failed": failed,
        "quarantined": quarantined,
        "scored": tally.scored,
        "duplicates": tally.duplicates,
        "resumed": tally.resumed_rows,
        "cached": tally.cached_rows,
        "retried_alone": tally.retried,
    }


def token_counts(tally: Tally, strategy: str, prefix_tokens: int) -> dict[str, Any]:
    """Tokens of the tickets scored in this run."""
    shares = STRATEGIES[strategy].shares_prefix
    return {
        "real": tally.run.real,
        "computed": tally.run.computed,
        "padding": tally.run.computed - tally.run.real,
        "prefix": prefix_tokens,
        "prefix_saved": prefix_tokens * max(0, tally.scored - 1) if shares else 0,
        "duplicate_saved": tally.duplicate_tokens,
        "ticket_lengths": {
            "median": quantile(tally.token_lengths, 0.5),
            "p90": quantile(tally.token_lengths, 0.9),
            "p99": quantile(tally.token_lengths, 0.99),
            "longest": quantile(tally.token_lengths, 1.0),
        },
    }


def padding_fractions(tally: Tally) -> dict[str, Any]:
    """Padding of the run and of every strategy's plan for the same tickets."""
    fractions = {name: padding_fraction(count.real, count.computed) for name, count in tally.plans.items()}
    return {"run": padding_fraction(tally.run.real, tally.run.computed)} | fractions


def batch_summary(tally: Tally) -> dict[str, Any]:
    """How many batches of which shapes: the ten most frequent (rows, width), and the largest."""
    shapes = tally.batch_shapes
    largest = max(shapes, key=lambda shape: shape[0] * shape[1], default=(0, 0))
    return {
        "count": shapes.total(),
        "distinct_shapes": len(shapes),
        "most_frequent": [
            {"rows": rows, "width": width, "count": count} for (rows, width), count in shapes.most_common(10)
        ],
        "largest": {"rows": largest[0], "width": largest[1]},
        "halved_for_memory": tally.halvings,
    }


def histograms(tally: Tally) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Score and margin histograms as lists of bins; the last margin bin is open, its `to` is null."""
    scores = [
        {"from": round(low, 3), "to": round(high, 3), "count": count}
        for low, high, count in zip(
            SCORE_EDGES.tolist(), SCORE_EDGES[1:].tolist(), tally.score_counts.tolist(), strict=False
        )
    ]
    edges = MARGIN_EDGES.tolist()
    margins = [
        {"from": low, "to": None if high == float("inf") else high, "count": count}
        for low, high, count in zip(edges, edges[1:], tally.margin_counts.tolist(), strict=False)
    ]
    return scores, margins
