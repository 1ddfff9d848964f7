"""Write Parquet: the carried columns as they were read, the output columns after them."""

import io
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ticket_etl.errors import OutputError
from ticket_etl.tickets.base import Tickets
from ticket_etl.tickets.files import one_line
from ticket_etl.tickets.jsonl import JsonlTickets
from ticket_etl.tickets.labelled import LabelledRows
from ticket_etl.tickets.parquet import ParquetTickets

GROUP_BYTES = 128 << 20
GROUP_ROWS = 65_536  # where the input has no row groups
PROOF_ROWS = 64
DEFAULT_CODEC = "zstd"
_CODECS = {
    "UNCOMPRESSED": "none",
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4",
    "LZ4_RAW": "lz4",
    "UNKNOWN": "lz4",  # what pyarrow calls the older, framed LZ4
}
# List children keep the names they have; the standard's "element" is one of them, and not forced on the others.
_LAYOUT: dict[str, Any] = {"version": "2.6", "use_compliant_nested_type": False}


def kept_columns(schema: pa.Schema, output_names: Collection[str]) -> list[int]:
    """Give the indices of the input columns that the output columns do not replace."""
    return [i for i, name in enumerate(schema.names) if name not in output_names]


def output_schema(tickets: Tickets, output_columns: pa.Schema) -> pa.Schema:
    """Give the schema of OUT."""
    kept = [tickets.schema.field(i) for i in kept_columns(tickets.schema, output_columns.names)]
    return pa.schema([*kept, *output_columns], metadata=tickets.schema.metadata)


def write_parquet(tickets: Tickets, file: BinaryIO, labels: LabelledRows) -> None:
    """Stream the input and its labels into an open file."""
    kept = kept_columns(tickets.schema, labels.schema.names)
    schema = output_schema(tickets, labels.schema)
    options = _options(tickets, schema, kept)
    with pq.ParquetWriter(file, schema, **options) as writer:
        pending: list[pa.RecordBatch] = []
        size = rows = 0
        for batch, ends_group in tickets.batches():
            pending.append(batch)
            size += batch.nbytes
            rows += batch.num_rows
            if ends_group or size >= GROUP_BYTES or (rows >= GROUP_ROWS and isinstance(tickets, JsonlTickets)):
                _write_group(writer, schema, tickets, pending, kept, labels)
                pending, size, rows = [], 0, 0
        if pending:
            _write_group(writer, schema, tickets, pending, kept, labels)


def _write_group(
    writer: pq.ParquetWriter,
    schema: pa.Schema,
    tickets: Tickets,
    batches: list[pa.RecordBatch],
    kept: list[int],
    labels: LabelledRows,
) -> None:
    num_rows = sum(batch.num_rows for batch in batches)
    carried = [pa.chunked_array([b.column(i) for b in batches], tickets.schema.field(i).type) for i in kept]
    table = pa.Table.from_arrays([*carried, *labels.take(num_rows).columns], schema=schema)
    writer.write_table(table, row_group_size=max(num_rows, 1))


def _options(tickets: Tickets, schema: pa.Schema, kept: list[int]) -> dict[str, Any]:
    """Give the writer's options: codecs by the paths that the written columns will have, and the declared order."""
    if not isinstance(tickets, ParquetTickets) or not tickets.codecs:
        return {**_LAYOUT, "compression": DEFAULT_CODEC}
    codecs = [_CODECS.get(codec, DEFAULT_CODEC) for codec in tickets.leaf_codecs(kept)]
    usual = Counter(codecs).most_common(1)[0][0] if codecs else DEFAULT_CODEC
    paths = _leaf_paths(schema)
    compression = {path: codecs[i] if i < len(codecs) else usual for i, path in enumerate(paths)}
    sorting = tickets.sorting if len(kept) == len(tickets.schema) else ()
    return {
        **_LAYOUT,
        "compression": compression if set(codecs) - {usual} else usual,
        "sorting_columns": sorting or None,
    }


def _leaf_paths(schema: pa.Schema) -> list[str]:
    buffer = io.BytesIO()
    pq.ParquetWriter(buffer, schema, **_LAYOUT).close()
    written = pq.read_metadata(buffer).schema
    return [written.column(i).path for i in range(len(written))]


def prove_parquet(tickets: Tickets, output_columns: pa.Schema, out: Path) -> None:
    """Write no rows, and the first few rows, to memory and read them back; refuse what does not come back as it was."""
    schema = output_schema(tickets, output_columns)
    kept = kept_columns(tickets.schema, output_columns.names)
    first = next(tickets.batches(), (None, False))[0]
    try:
        for batch in [None] if first is None else [None, first.slice(0, PROOF_ROWS)]:
            buffer = io.BytesIO()
            with pq.ParquetWriter(buffer, schema, **_options(tickets, schema, kept)) as writer:
                if batch is not None:
                    nulls = [pa.nulls(batch.num_rows, field.type) for field in output_columns]
                    writer.write_table(pa.Table.from_arrays([*(batch.column(i) for i in kept), *nulls], schema=schema))
            back = pq.ParquetFile(buffer)
            _same_schema(schema, back.schema_arrow)
            back.read()
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise OutputError(
            f"{out}: the input's columns cannot be written as Parquet ({one_line(error)}); write JSONL"
        ) from error


def check_parquet(path: Path, num_rows: int, schema: pa.Schema) -> None:
    """Read the written file's footer back and compare."""
    with path.open("rb") as file:  # opened here, since pyarrow takes no name outside UTF-8
        written = pq.ParquetFile(file)
        rows, found = written.metadata.num_rows, written.schema_arrow
    if rows != num_rows:
        raise OutputError(f"{path}: {rows} rows were read back where {num_rows} were written; check the disk")
    try:
        _same_schema(schema, found)
    except ValueError as error:
        raise OutputError(f"{path}: {error}; check the disk") from error


def _same_schema(wanted: pa.Schema, found: pa.Schema) -> None:
    for field, back in zip(wanted, found, strict=True):
        if not back.equals(field):
            raise ValueError(f"column '{field.name}' comes back as {back} instead of {field}")
        missing = set((field.metadata or {}).items()) - set((back.metadata or {}).items())
        if missing:
            raise ValueError(f"column '{field.name}' comes back without its metadata")
    if not set((wanted.metadata or {}).items()) <= set((found.metadata or {}).items()):
        raise ValueError("the table comes back without its metadata")
