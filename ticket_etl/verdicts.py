"""What the job decides about a ticket, and how decisions are kept.

Verdicts travel as one numpy record array from the scorer through the journal to the writer: fixed size, no Python
object per ticket. Scorer, journal and cache hold what the model said; whether a label is certain enough to stand is
decided when OUT is written (`Abstention`), so that other thresholds need no new scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OK, TRUNCATED, EMPTY, FAILED, ABSTAINED = range(5)
STATUSES = ("ok", "truncated", "empty", "failed", "abstained")
"""Names of the statuses, as `label_status` holds them."""

VERDICT = np.dtype([("label", "<i4"), ("score", "<f4"), ("margin", "<f4"), ("status", "u1")])
"""label: index in the label set, -1 for none; score: probability; margin: log-odds to the runner-up.

An abstained ticket keeps the three of its best label: what was not certain enough can still be looked at.
"""

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


@dataclass(frozen=True)
class Abstention:
    """From where on a label is too uncertain to stand: the reject option of Chow (1970).

    min_score: least probability, min_margin: least log-odds to the runner-up; 0 lets every label stand.
    fallback: the name that OUT holds instead of such a label; None for null.
    """

    min_score: float = 0.0
    min_margin: float = 0.0
    fallback: str | None = None

    def apply(self, verdicts: Verdicts) -> Verdicts:
        """The verdicts, with the status `abstained` for each label that is below either threshold (in float32)."""
        uncertain = (verdicts["score"] < self.min_score) | (verdicts["margin"] < self.min_margin)
        decided = verdicts.copy()
        decided["status"][uncertain & (verdicts["label"] >= 0)] = ABSTAINED
        return decided


def output_schema(prefix: str = "") -> pa.Schema:
    """The columns that OUT gains; `prefix` goes before each name."""
    return pa.schema([pa.field(prefix + name, kind) for name, kind in zip(OUTPUT_NAMES, _OUTPUT_TYPES, strict=True)])


def output_batch(
    verdicts: Verdicts, label_names: Sequence[str], prefix: str = "", fallback: str | None = None
) -> pa.RecordBatch:
    """Verdicts as the output columns.

    What is empty or failed has null label, score and margin. What is abstained has the fallback as its label, or null
    where there is none, and keeps score and margin of its best label.
    """
    unlabelled = verdicts["label"] < 0
    abstained = verdicts["status"] == ABSTAINED
    indices = np.where(abstained, len(label_names), verdicts["label"])  # the fallback stands behind the labels
    names = pa.DictionaryArray.from_arrays(
        pa.array(indices, mask=unlabelled), pa.array([*label_names, fallback], pa.string())
    )
    statuses = pa.DictionaryArray.from_arrays(pa.array(verdicts["status"].astype(np.int8)), pa.array(STATUSES))
    columns = [
        names.cast(pa.string()),
        pa.array(verdicts["score"], mask=unlabelled),
        pa.array(verdicts["margin"], mask=unlabelled),
        statuses.cast(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=output_schema(prefix))
