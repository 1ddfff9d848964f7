"""What decides a score: the parts of a job's fingerprint, and how far each of them reaches."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ticket_etl import __version__
from ticket_etl.config import JobConfig

if TYPE_CHECKING:
    from ticket_etl.scoring import Scoring
    from ticket_etl.tickets import Tickets


@dataclass(frozen=True)
class Reach:
    """of_text: another value gives the same text another label or score, so that the label cache holds another entry.

    shifts_labels: another value can give many tickets another label, so that a drift says little of the tickets.
    """

    of_text: bool
    shifts_labels: bool


_LABELS = Reach(of_text=True, shifts_labels=True)
_RUN = Reach(of_text=False, shifts_labels=False)
"""What may change a rounding, in which labels are exact all the same."""

PARTS: dict[str, Reach] = {
    "input": _RUN,
    "text columns": Reach(of_text=False, shifts_labels=True),  # the texts themselves are looked up in the cache
    "labels": _LABELS,
    "head": _LABELS,
    "prompt": _LABELS,
    "calibration": _LABELS,
    "model": _LABELS,
    "dtype": _LABELS,
    "device": _RUN,
    "strategy": _RUN,
    "certification": Reach(of_text=True, shifts_labels=False),
    "drift profile": _RUN,
    "batch limits": _RUN,
    "max ticket tokens": _LABELS,
    "version": _LABELS,
}


def job_fingerprint(config: JobConfig, tickets: "Tickets", scoring: "Scoring") -> dict[str, str]:
    """Everything that decides a score, part by part, so that a mismatch can be named."""
    parts = {
        "input": tickets.content_hash,
        "text columns": fingerprint_text(tickets.text_columns),
        "labels": fingerprint_text([asdict(scoring.labels)["labels"], scoring.prompt.sequences]),
        "head": "none" if scoring.head is None else scoring.head.fingerprint,
        "prompt": scoring.prompt.fingerprint,
        "calibration": str(config.calibrate),
        "model": scoring.folder.revision,  # a hash or a commit, wherever the folder lies
        "dtype": scoring.dtype_name,
        "device": str(scoring.model.device),
        "strategy": scoring.strategy.name,
        "certification": fingerprint_text([config.certify, config.seed]),
        "drift profile": fingerprint_text(None if scoring.profile is None else scoring.profile.in_force),
        "batch limits": fingerprint_text(
            [scoring.limits.batch_tickets, scoring.limits.batch_tokens, config.window_tickets]
        ),
        "max ticket tokens": str(scoring.encoder.max_ticket_tokens),
        "version": __version__,
    }
    if parts.keys() != PARTS.keys():
        raise AssertionError(f"parts without a reach: {parts.keys() ^ PARTS.keys()}")
    return parts


def parts_of_text(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """The parts that belong to a text's label, whichever run gives it."""
    return {part: value for part, value in fingerprint.items() if PARTS.get(part, _LABELS).of_text}


def parts_that_shift(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """The parts that can shift labels; those of another version's report that are not known here may."""
    return {part: value for part, value in fingerprint.items() if PARTS.get(part, _LABELS).shifts_labels}


def fingerprint_text(value: object) -> str:
    """A fingerprint part as text: equal for equal values, readable in the journal."""
    return json.dumps(value, sort_keys=True, default=str)
