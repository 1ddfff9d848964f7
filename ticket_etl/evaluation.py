"""The outcome of `ticket-etl evaluate`: data first, then the same as text and as strict JSON. Facts, no advice."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ticket_etl.errors import EXIT_PARTIAL

MATRIX_LABELS = 12
"""Labels up to which the text shows the whole confusion matrix; beyond, its most frequent confusions."""

FREQUENT_CONFUSIONS = 20


_ROW_NAMES = "gold "
"""Heads the names of a matrix's rows; no label is called so, since none ends in white space."""


@dataclass(frozen=True)
class Evaluation:
    """How labels compare with gold labels. Shares are fractions between 0 and 1; low and high bound them with 95%.

    model: of `classify`, if the tickets were labelled for this; None if the labels were in the file.
    rows: read = evaluated + no_gold + abstained + empty + failed + quarantined.
    with_gold: evaluated + abstained + empty + failed: what coverage is a share of.
    most_frequent: the most frequent gold label; `share` would be the accuracy of giving it to every ticket.
    gold_never_given, gold_outside_labels: gold labels with their tickets; the latter is None where the label set is not
    known, for a scored file without --labels.
    labels, confusion: by how often they are in gold; the matrix has gold in its rows.
    """

    version: str
    input: str
    gold: str
    model: dict[str, Any] | None
    rows: dict[str, int]
    with_gold: int
    accuracy: dict[str, float]
    macro_f1: dict[str, float]
    most_frequent: dict[str, Any]
    gold_never_given: dict[str, int]
    gold_outside_labels: dict[str, int] | None
    labels: list[dict[str, Any]]
    confusion: dict[str, Any]
    calibration: dict[str, Any]
    coverage: dict[str, list[dict[str, Any]]]
    bootstrap: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """0, or the code for tickets that failed or were quarantined."""
        return EXIT_PARTIAL if self.rows["failed"] or self.rows["quarantined"] else 0

    def to_json(self) -> str:
        """All of it as strict JSON (no NaN, no infinity)."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        rows = {name.replace("_", " "): count for name, count in self.rows.items() if count}
        others = [f", {count:,} {name}" for name, count in rows.items() if name not in ("read", "evaluated")]
        source = f"given now by {self.model['name']}" if self.model else "as they stand in the file"
        error, bins = self.calibration["expected_calibration_error"], self.calibration["bins"]
        frequent = self.most_frequent
        lines = [
            f"tickets     {self.rows['read']:,} read, {self.rows['evaluated']:,} evaluated{''.join(others)}",
            f"labels      {source}; gold labels in column '{self.gold}'",
            f"accuracy    {_interval(self.accuracy)}",
            f"macro-F1    {_interval(self.macro_f1)}, over the {self.macro_f1['labels']} labels that occur in gold",
            f"guessing    the most frequent gold label, {frequent['label']}, would be right for {frequent['share']:.3f}"
            " of them",
            f"calibration {error:.3f} expected error of the score, over {len(bins)} bins",
            *_named("never given", self.gold_never_given),
            *_named("not a label", self.gold_outside_labels or {}),
            f"intervals   95%, {self.bootstrap['resamples']:,} bootstrap resamples, seed {self.bootstrap['seed']}",
        ]
        sections = ["\n".join(lines), _table("Labels", [_flat(row) for row in self.labels])]
        sections += self._confusions()
        sections.append(
            _table("Reliability: score and accuracy by score", [_flat(row) for row in bins if row["tickets"]])
        )
        sections += [
            _table(f"Coverage and accuracy with --min-{name}", [_flat(row) for row in rows])
            for name, rows in self.coverage.items()
        ]
        return "\n\n".join(sections)

    def _confusions(self) -> list[str]:
        names, counts = self.confusion["labels"], self.confusion["counts"]
        if len(names) <= MATRIX_LABELS:
            rows = [
                {_ROW_NAMES: name} | dict(zip(names, row, strict=True)) for name, row in zip(names, counts, strict=True)
            ]
            return [_table("Confusion: tickets by gold (row) and label (column)", rows)]
        wrong = [
            {"gold": gold, "label": name, "tickets": count}
            for gold, row in zip(names, counts, strict=True)
            for name, count in zip(names, row, strict=True)
            if gold != name and count
        ]
        wrong.sort(key=lambda row: -row["tickets"])
        shown = wrong[:FREQUENT_CONFUSIONS]
        title = f"Confusion: the {len(shown)} most frequent of {len(wrong):,} pairs of gold and label; --json has all"
        return [_table(title, shown)] if wrong else []


def _interval(estimate: Mapping[str, float]) -> str:
    return f"{estimate['value']:.3f} (95%: {estimate['low']:.3f} to {estimate['high']:.3f})"


def _named(title: str, labels: Mapping[str, int]) -> list[str]:
    return [f"{title} {', '.join(f'{name} ({count:,})' for name, count in labels.items())}"] if labels else []


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table, with an estimate as its value and its interval."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            flat |= {name: value["value"], f"{name} 95%": f"{value['low']:.3f} to {value['high']:.3f}"}
        else:
            flat[name] = value
    return flat


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    with pl.Config(
        tbl_formatting="NOTHING",
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_rows=-1,
        tbl_cols=-1,
        tbl_width_chars=10_000,
        fmt_str_lengths=60,
        float_precision=3,
        tbl_cell_numeric_alignment="RIGHT",
    ):
        return f"{title}\n\n{pl.DataFrame(rows, infer_schema_length=None)}"
