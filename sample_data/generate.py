"""Write the sample tickets, the same rows as Parquet and as JSON lines.

Everything is invented and depends on the seed alone. Ticket i does not depend on the number of rows, so a larger
sample starts with the smaller one; rows are streamed in row groups, so that a million of them fit in memory.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from ticketgen.tickets import Ticket, ticket

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("created", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("channel", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("lang", pa.string(), nullable=False),
        pa.field("subject", pa.string()),
        pa.field("text", pa.string()),
        pa.field("gold", pa.string()),
    ]
)
ROW_GROUP = 10_000
DEFAULT_ROWS = 600
DEFAULT_SEED = 16


def batches(rows: int, seed: int, size: int = ROW_GROUP) -> Iterator[list[Ticket]]:
    """Yield the tickets in lists of at most `size`."""
    for start in range(0, rows, size):
        yield [ticket(seed, index) for index in range(start, min(start + size, rows))]


def as_table(tickets: list[Ticket]) -> pa.Table:
    """Build one row group."""
    columns = [pa.array([getattr(item, field.name) for item in tickets], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def as_json(item: Ticket) -> str:
    """Write one ticket as a line of JSON, with the columns in the order of the schema."""
    row = {field.name: getattr(item, field.name) for field in SCHEMA}
    row["created"] = item.created.strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(row, ensure_ascii=False)


def write(out: Path, rows: int, seed: int) -> None:
    """Write tickets.parquet and tickets.jsonl to a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with (
        pq.ParquetWriter(out / "tickets.parquet", SCHEMA, compression="zstd") as parquet,
        (out / "tickets.jsonl").open("w", encoding="utf-8", newline="\n") as lines,
    ):
        for batch in batches(rows, seed):
            parquet.write_table(as_table(batch), row_group_size=ROW_GROUP)
            lines.writelines(as_json(item) + "\n" for item in batch)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write sample support tickets as Parquet and JSON lines.")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder to write to (default: this one)"
    )
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="number of tickets (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="seed of all draws (default: %(default)s)")
    options = parser.parse_args()
    if options.rows < 1:
        parser.error("--rows must be at least 1")
    write(options.out, options.rows, options.seed)


if __name__ == "__main__":
    main()
