"""Write JSON Lines: records with their bytes as they were, or Parquet rows rendered, each with its output columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from ticket_etl.errors import OutputError
from ticket_etl.tickets.base import Tickets
from ticket_etl.tickets.files import READ_BYTES
from ticket_etl.tickets.jsonl import JsonlTickets
from ticket_etl.tickets.jsonl_lines import compressed, decompressed
from ticket_etl.tickets.jsonl_records import with_members, without_keys
from ticket_etl.tickets.labelled import LabelledRows
from ticket_etl.tickets.render import json_text, render, unrenderable


def write_jsonl(tickets: Tickets, file: BinaryIO, labels: LabelledRows, compression: str) -> None:
    """Stream the input and its labels into an open file, one object a line."""
    lines = _extended_lines(tickets, labels) if isinstance(tickets, JsonlTickets) else _rendered_lines(tickets, labels)
    with compressed(file, compression) as out:
        for block in lines:
            out.write(b"\n".join(block) + b"\n")


def _extended_lines(tickets: JsonlTickets, labels: LabelledRows) -> Iterator[list[bytes]]:
    replaced = frozenset(labels.schema.names) & frozenset(tickets.schema.names)
    for lines in tickets.records():
        members = _members(labels.take(len(lines)))
        if replaced:
            lines = [without_keys(line, replaced) for line in lines]
        yield [with_members(line, member) for line, member in zip(lines, members, strict=True)]


def _rendered_lines(tickets: Tickets, labels: LabelledRows) -> Iterator[list[bytes]]:
    kept = [i for i, name in enumerate(tickets.schema.names) if name not in labels.schema.names]
    keys = [tickets.schema.names[i] for i in kept]
    for batch, _ in tickets.batches():
        if batch.num_rows:
            columns = [render(batch.column(i)) for i in kept]
            rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
            records = (json_text(dict(zip(keys, row, strict=True))).encode() for row in rows)
            yield [with_members(r, m) for r, m in zip(records, _members(labels.take(batch.num_rows)), strict=True)]


def _members(table: pa.Table) -> list[bytes]:
    """Render each row as members without their braces: '"label":"billing","label_score":0.9'."""
    columns = [
        [f"{json_text(name)}:{json_text(value)}" for chunk in column.chunks for value in render(chunk)]
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return [",".join(row).encode() for row in zip(*columns, strict=True)]


def prove_jsonl(tickets: Tickets, output_columns: pa.Schema, out: Path) -> None:
    """Refuse, by name, columns that have no rendering as JSON."""
    if isinstance(tickets, JsonlTickets):
        return
    kept = [field for field in tickets.schema if field.name not in output_columns.names]
    names = [field.name for field in kept]
    for field in kept:
        why = "two columns have this name" if names.count(field.name) > 1 else unrenderable(field.type)
        if why:
            raise OutputError(f"{out}: column '{field.name}' cannot be written as JSON ({why}); write Parquet")


def check_jsonl(path: Path, num_rows: int, compression: str) -> None:
    """Read the written file back to its end, and count its lines."""
    found = 0
    with path.open("rb") as raw, decompressed(raw, compression) as file:
        while chunk := file.read(READ_BYTES):
            found += chunk.count(b"\n")
    if found != num_rows:
        raise OutputError(f"{path}: {found} lines were read back where {num_rows} were written; check the disk")
