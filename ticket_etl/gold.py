"""Reading labels beside gold labels: each ticket of a scored file has one outcome, and each outcome is counted.

    evaluated                    it has a gold label and a label that stands (`ok`, `truncated`)
    no_gold                      its gold label is null or blank
    abstained, empty, failed     as its status says

A gold label is what its column says, character by character; 7 is "7".
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ticket_etl.errors import InputError, UsageError
from ticket_etl.metrics import Floats, Indices
from ticket_etl.tickets import Tickets, open_tickets
from ticket_etl.tickets.base import is_string
from ticket_etl.tickets.parquet import read_texts
from ticket_etl.verdicts import ABSTAINED, EMPTY, FAILED, OK, OUTPUT_NAMES, STATUSES, TRUNCATED

MAX_NAMES = 1_000
"""Different labels and gold labels; a column with more holds something else."""

_MOST = 1.001
"""What a probability can be in float32, roundings included."""

_STANDING = (STATUSES[OK], STATUSES[TRUNCATED])
OUTCOMES = ("evaluated", "no_gold", STATUSES[ABSTAINED], STATUSES[EMPTY], STATUSES[FAILED])


@dataclass(frozen=True)
class LabelledGold:
    """The tickets that can be evaluated, 16 bytes each, and the number of tickets of each outcome.

    names: labels and gold labels, in order of appearance.
    gold, given: int32, shape (tickets,): indices into `names`.
    scores, margins: float32, shape (tickets,).
    """

    names: list[str]
    gold: Indices
    given: Indices
    scores: Floats
    margins: Floats
    outcomes: dict[str, int]


def open_gold(path: str, gold: str, bad_records: str = "stop") -> Tickets:
    """Open an input whose text is its gold column: whatever can be read as text can be gold.

    Raises:
        UsageError: there is no such column; the message lists those that are there.
    """
    try:
        return open_tickets(path, text_columns=(gold,), bad_records=bad_records)
    except UsageError as error:
        raise UsageError(f"--gold {gold}: {error}") from error


def missing_columns(tickets: Tickets, prefix: str) -> list[str]:
    """The output columns that an input does not hold; none if it is a scored file."""
    return [prefix + name for name in OUTPUT_NAMES if prefix + name not in tickets.schema.names]


def free_prefix(tickets: Tickets, prefix: str) -> str:
    """The prefix, with as many underscores before it as keep the output columns apart from those of the input."""
    while len(missing_columns(tickets, prefix)) < len(OUTPUT_NAMES):
        prefix = f"_{prefix}"
    return prefix


def read_gold(tickets: Tickets, gold: str, prefix: str, name: str) -> LabelledGold:
    """Read a scored file that `open_gold` has opened; `name` is what the user calls it.

    Raises:
        InputError: what the output columns hold is not what `classify` writes; the message names the first such row.
        UsageError: the gold column is one of the output columns, or holds too many different values.
    """
    columns = [prefix + name for name in OUTPUT_NAMES]
    if gold in columns:
        raise UsageError(f"--gold {gold}: {name} holds its own labels there; name the column of the true ones")
    if tickets.schema.names:  # JSONL without a record has no column at all
        _check_types(tickets, columns)
    index_of: dict[str, int] = {}
    outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
    parts: list[tuple[Indices, Indices, Floats, Floats]] = []
    row = 0
    for batch, _ in tickets.batches():
        truths, names, statuses = (read_texts(batch.column(each)) for each in (gold, columns[0], columns[3]))
        scores, margins = (_float32(batch.column(each)) for each in columns[1:3])
        usable = (scores >= 0) & (scores < _MOST) & np.isfinite(margins)
        kept = []
        for at, (truth, label, status) in enumerate(zip(truths, names, statuses, strict=True)):
            outcome = "evaluated" if status in _STANDING else status
            if outcome not in OUTCOMES:
                raise _foreign(tickets, row + at, f"{columns[3]} {status!r}, which is none of {', '.join(STATUSES)}")
            if outcome == "evaluated" and (label is None or not usable[at]):
                raise _foreign(tickets, row + at, f"{columns[3]} {status!r} without label, probability and margin")
            if truth is None or not truth.strip():
                outcome = "no_gold"
            outcomes[outcome] += 1
            if outcome == "evaluated":
                kept.append(at)
        row += batch.num_rows
        pairs = [[index_of.setdefault(column[at] or "", len(index_of)) for at in kept] for column in (truths, names)]
        if len(index_of) > MAX_NAMES:
            raise UsageError(
                f"--gold {gold}: {name} has over {MAX_NAMES:,} different values there and in {columns[0]};"
                " name the column of the true labels"
            )
        parts.append((np.array(pairs[0], np.int32), np.array(pairs[1], np.int32), scores[kept], margins[kept]))
    if not outcomes["evaluated"]:
        found = ", ".join(f"{count:,} {outcome.replace('_', ' ')}" for outcome, count in outcomes.items() if count)
        raise InputError(f"{name}: nothing to evaluate ({found or 'no rows'}); gold labels are in column '{gold}'")
    golds, given, kept_scores, kept_margins = (np.concatenate(each) for each in zip(*parts, strict=True))
    return LabelledGold(list(index_of), golds, given, kept_scores, kept_margins, dict(outcomes))


def _check_types(tickets: Tickets, columns: Sequence[str]) -> None:
    for name, wanted in zip(columns, ("strings", "numbers", "numbers", "strings"), strict=True):
        kind = tickets.schema.field(tickets.schema.names.index(name)).type
        number = pa.types.is_floating(kind) or pa.types.is_integer(kind)
        if not (pa.types.is_null(kind) or (is_string(kind) if wanted == "strings" else number)):
            raise InputError(
                f"{tickets.name}: column '{name}' holds {kind}, not the {wanted} that classify writes;"
                " rename it, or set --output-prefix"
            )


def _float32(array: pa.Array) -> Floats:
    return pc.cast(array, pa.float32(), safe=False).to_numpy(zero_copy_only=False)


def _foreign(tickets: Tickets, row: int, what: str) -> InputError:
    return InputError(f"{tickets.name}: row {row} (the first is 0) has {what}; this is no file that classify wrote")
