"""`ticket-etl verify`: a strategy and precision held against the reference, ticket by ticket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ticket_etl.certify import margins
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import EXIT_DISAGREEMENT
from ticket_etl.network import FloatArray
from ticket_etl.plan import Limits
from ticket_etl.preflight import check_request
from ticket_etl.prompt import TokenIds
from ticket_etl.scorers import Reference, score_plan
from ticket_etl.scoring import Scoring
from ticket_etl.strategies import REFERENCE
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
    """The outcome of `ticket-etl verify`."""

    strategy: str
    dtype: str
    tickets: int
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
        lines += [
            f"row {each.row}: {each.label!r}, reference {each.reference_label!r} by {each.reference_margin:.4f}"
            for each in self.disagreements
        ]
        return "\n".join(lines)


def verify_input(config: ScoringConfig, sample: int | None, on_progress: Callable[[int, int], None]) -> Verification:
    """Score a sample (or, with None, every ticket) by the configured strategy and by the reference.

    Raises:
        UsageError, ModelError: see `check_request` and `Scoring`.
        InputError: IN cannot be read, or holds no text.
    """
    request = check_request(config)
    labels, folder = request.labels, request.folder
    workload = read_workload(config)
    scoring = Scoring(config, labels, folder, head=request.head)
    encoded = workload.encode(scoring.encoder)
    chosen = workload.sample(encoded, sample, config.seed)
    tickets = [encoded[index].ids for index in chosen]
    scores = score_plan(scoring.scorer, scoring.strategy, scoring.limits, tickets)
    if (certifier := scoring.certifier()) is not None:
        scores = certifier.certify(scores, tickets)
    expected = reference_scores(scoring.reference, tickets, on_progress)
    outcome = compare(scores, expected)
    return Verification(
        strategy=scoring.strategy.name,
        dtype=str(scoring.dtype).removeprefix("torch."),
        tickets=len(tickets),
        of_tickets=len(encoded),
        ties=outcome.ties,
        max_drift=outcome.max_drift,
        disagreements=tuple(
            Disagreement(
                workload.rows[chosen[ticket]],
                labels.names[int(scores[ticket].argmax())],
                labels.names[int(expected[ticket].argmax())],
                float(margins(expected)[ticket]),
            )
            for ticket in np.flatnonzero(~outcome.agrees).tolist()
        ),
    )


def reference_scores(
    reference: Reference, tickets: Sequence[TokenIds], on_progress: Callable[[int, int], None] | None = None
) -> FloatArray:
    """Log-probabilities of the reference path: float32, shape (tickets, labels)."""
    scores = []
    for batch in REFERENCE.planner(reference.layout.lengths(tickets), Limits()):
        scores.append(reference.score(batch, tickets))
        if on_progress is not None:
            on_progress(len(scores), len(tickets))
    return np.concatenate(scores)


def compare(scores: FloatArray, expected: FloatArray) -> Agreement:
    """Hold log-probabilities of shape (tickets, labels) against the reference's."""
    tied = margins(expected) <= TIE_MARGIN
    same = scores.argmax(axis=1) == expected.argmax(axis=1)
    return Agreement(same | tied, int(tied.sum()), float(np.abs(scores - expected).max()))
