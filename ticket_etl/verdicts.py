"""What the job decides about a ticket, and how decisions are kept.

Verdicts travel as one numpy record array from the scorer through the journal to the writer: fixed size, no Python
object per ticket.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OK, TRUNCATED, EMPTY, FAILED = range(4)
STATUSES = ("ok", "truncated", "empty", "failed")
"""Names of the statuses, as `label_status` holds them."""

VERDICT = np.dtype([("label", "<i4"), ("score", "<f4"), ("margin", "<f4"), ("status", "u1")])
"""label: index in the label set, -1 for none; score: probability; margin: log-odds to the runner-up."""

Verdicts = npt.NDArray[np.void]

OUTPUT_NAMES = ("label", "label_score", "label_margin", "label_status")
_OUTPUT_TYPES = (pa.string(), pa.float32(), pa.float32(), pa.string())


def blank_verdicts(count: int, status: int) -> Verdicts:
    """Verdicts without a label."""
    verdicts = np.zeros(count, dtype=VERDICT)
    verdicts["label"] = -1
    verdicts["score"] = verdicts["margin"] = np.nan
    verdicts["status"] = status
    return verdicts


def decide(log_probs: npt.NDArray[np.float32], truncated: npt.NDArray[np.bool_]) -> Verdicts:
    """Choose each ticket's label.

    The highest log-probability wins, the label listed first among equals. A row with a value that is not finite is
    `failed`: such scores never make a label.

    Args:
        log_probs: float32, shape (tickets, labels), at least two labels.
        truncated: bool, shape (tickets,).
    """
    verdicts = blank_verdicts(len(log_probs), FAILED)
    finite = np.flatnonzero(np.isfinite(log_probs).all(axis=1))
    scored = log_probs[finite]
    best = scored.argmax(axis=1)
    second, first = np.partition(scored, -2, axis=1)[:, -2:].T
    verdicts["label"][finite] = best
    verdicts["score"][finite] = np.exp(first)
    verdicts["margin"][finite] = first - second
    verdicts["status"][finite] = np.where(truncated[finite], TRUNCATED, OK)
    return verdicts


def output_schema(prefix: str = "") -> pa.Schema:
    """The columns that OUT gains; `prefix` goes before each name."""
    return pa.schema([pa.field(prefix + name, kind) for name, kind in zip(OUTPUT_NAMES, _OUTPUT_TYPES, strict=True)])


def output_batch(verdicts: Verdicts, label_names: Sequence[str], prefix: str = "") -> pa.RecordBatch:
    """Verdicts as the output columns; what has no label has null label, score and margin."""
    unlabelled = verdicts["label"] < 0
    names = pa.DictionaryArray.from_arrays(pa.array(verdicts["label"], mask=unlabelled), pa.array(label_names))
    statuses = pa.DictionaryArray.from_arrays(pa.array(verdicts["status"].astype(np.int8)), pa.array(STATUSES))
    columns = [
        names.cast(pa.string()),
        pa.array(verdicts["score"], mask=unlabelled),
        pa.array(verdicts["margin"], mask=unlabelled),
        statuses.cast(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=output_schema(prefix))
