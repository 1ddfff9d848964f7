"""`ticket-etl verify`: a strategy and precision held against the reference, ticket by ticket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ticket_etl.arrays import FloatArray
from ticket_etl.certify import margins
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import EXIT_DISAGREEMENT
from ticket_etl.preflight import read_request
from ticket_etl.scorers import reference_scores, score_plan
from ticket_etl.scoring import Scoring
from ticket_etl.workload import read_workload

TIE_MARGIN = 1e-3
"""Reference margins (log-odds) up to this are ties: float32 itself cannot tell the two labels apart."""


@dataclass(frozen=True)
class Disagreement:
    """A ticket that got another label than the reference gives it."""

    row: int
    label: str
    reference_label: str
    reference_margin: float


@dataclass(frozen=True)
class Agreement:
    """How a strategy's log-probabilities compare with the reference's.

    agrees: bool, shape (tickets,): same label, or a tie in the reference.
    max_drift: largest difference of a log-probability.
    """

    agrees: np.ndarray
    ties: int
    max_drift: float


@dataclass(frozen=True)
class Verification:
    """The outcome of `ticket-etl verify`.

    in_low_precision: tickets whose scores certification left as they were; None where precision is not low.
    """

    strategy: str
    dtype: str
    tickets: int
    in_low_precision: int | None
    of_tickets: int
    ties: int
    max_drift: float
    disagreements: tuple[Disagreement, ...]

    @property
    def exit_code(self) -> int:
        """0 if every ticket agrees."""
        return EXIT_DISAGREEMENT if self.disagreements else 0

    def __str__(self) -> str:
        agreeing = self.tickets - len(self.disagreements)
        lines = [
            f"{agreeing:,} of {self.tickets:,} distinct tickets agree with the reference"
            f" ({self.strategy}, {self.dtype}; {self.of_tickets:,} distinct in the input)",
            f"largest difference of a log-probability {self.max_drift:.2g}; {self.ties} ties within {TIE_MARGIN:g}",
        ]
        if self.in_low_precision is not None:
            again = self.tickets - self.in_low_precision
            lines.append(
                f"{self.in_low_precision:,} of them with their {self.dtype} scores, {again:,} scored in float32 by"
                " certification, which samples at least 64 of a window; a larger --sample has more of the former"
            )
        lines += [
            f"row {each.row}: {each.label!r}, reference {each.reference_label!r} by {each.reference_margin:.4f}"
            for each in self.disagreements
        ]
        return "\n".join(lines)


def verify_input(config: ScoringConfig, sample: int | None, on_progress: Callable[[int, int], None]) -> Verification:
    """Score a sample (or, with None, every ticket) by the configured strategy and by the reference.

    Raises:
        UsageError, ModelError: see `read_request` and `Scoring`.
        InputError: IN cannot be read, or holds no text.
    """
    request = read_request(config)
    labels, folder = request.labels, request.folder
    workload = read_workload(config)
    scoring = Scoring(config, labels, folder, head=request.head)
    encoded = workload.encode(scoring.encoder)
    chosen = workload.sample(encoded, sample, config.seed)
    tickets = [encoded[index].ids for index in chosen]
    scores = score_plan(scoring.scorer, scoring.strategy, scoring.limits, tickets)
    certifier = scoring.certifier()
    untouched = len(tickets) if scoring.model.is_low_precision else None
    if certifier is not None:
        scores = certifier.certify(scores, tickets)
        untouched = certifier.count.low - certifier.count.sampled - certifier.count.rescored
    expected = reference_scores(scoring.reference, tickets, on_progress)
    outcome = compare(scores, expected)
    return Verification(
        strategy=scoring.strategy.name,
        dtype=scoring.dtype_name,
        tickets=len(tickets),
        in_low_precision=untouched,
        of_tickets=len(encoded),
        ties=outcome.ties,
        max_drift=outcome.max_drift,
        disagreements=tuple(
            Disagreement(
                workload.rows[chosen[ticket]],
                _label(scores[ticket], labels.names),
                _label(expected[ticket], labels.names),
                float(margins(expected)[ticket]),
            )
            for ticket in np.flatnonzero(~outcome.agrees).tolist()
        ),
    )


def compare(scores: FloatArray, expected: FloatArray) -> Agreement:
    """Hold log-probabilities of shape (tickets, labels) against the reference's; a NaN agrees with nothing."""
    finite = np.isfinite(scores).all(axis=1) & np.isfinite(expected).all(axis=1)
    tied = finite & (margins(expected) <= TIE_MARGIN)
    same = finite & (scores.argmax(axis=1) == expected.argmax(axis=1))
    drifts = np.abs(scores - expected)[finite]
    return Agreement(same | tied, int(tied.sum()), float(drifts.max(initial=0.0)))


def _label(log_probs: FloatArray, names: Sequence[str]) -> str:
    return names[int(log_probs.argmax())] if np.isfinite(log_probs).all() else "(no score)"
