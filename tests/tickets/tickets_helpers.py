"""What the tests of the ticket files share: output columns, a stand-in for the scorer, comparisons."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ticket_etl.tickets import Tickets, check_output, open_tickets, write_labelled

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("TICKET_ETL_SHARED", ROOT.parent / "shared"))
OUTPUT = pa.schema(
    [
        ("label", pa.string()),
        ("label_score", pa.float32()),
        ("label_margin", pa.float32()),
        ("label_status", pa.string()),
    ]
)


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is absent; set TICKET_ETL_SHARED to the folder of shared test data")
    return path


def labelled(num_rows: int, size: int = 7) -> Iterator[pa.RecordBatch]:
    """Give one label a row, its row number, in batches that fit no boundary of the input."""
    for start in range(0, num_rows, size):
        rows = range(start, min(start + size, num_rows))
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([f"label {i}" for i in rows], pa.string()),
                pa.array([0.9] * len(rows), pa.float32()),
                pa.array([None if i % 2 else 1.5 for i in rows], pa.float32()),
                pa.array(["ok"] * len(rows), pa.string()),
            ],
            schema=OUTPUT,
        )


def label(
    source: Path | str, out: Path, *, replace_columns: bool = False, size: int = 7, **options
) -> list[str | None]:
    """Run an input through to OUT as the pipeline does; give the texts."""
    with open_tickets(str(source), **options) as tickets:
        texts = all_texts(tickets)
        assert len(texts) == tickets.num_rows
        check_output(tickets, out, output_columns=OUTPUT, replace_columns=replace_columns)
        batches = labelled(tickets.num_rows, size)
        write_labelled(tickets, out, batches, replace_columns=replace_columns, output_columns=OUTPUT)
    return texts


def all_texts(tickets: Tickets) -> list[str | None]:
    return [text for batch in tickets.texts() for text in batch]


def assert_lossless(source: Path, out: Path) -> None:
    """Every column of the input is back, with everything about it; the labels are in row order."""
    before, after = pq.ParquetFile(source), pq.ParquetFile(out)
    width = len(before.schema_arrow)
    carried = pa.schema([after.schema_arrow.field(i) for i in range(width)], after.schema_arrow.metadata)
    assert carried.equals(before.schema_arrow, check_metadata=True)
    assert after.schema_arrow.names[width:] == OUTPUT.names
    assert all(after.schema_arrow.field(width + i).equals(OUTPUT.field(i)) for i in range(len(OUTPUT)))
    old, new = before.read(), after.read()
    for i in range(width):
        assert same_values(old.column(i), new.column(i)), before.schema_arrow.names[i]
    assert new.column(width).to_pylist() == [f"label {i}" for i in range(before.metadata.num_rows or old.num_rows)]


def same_values(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    """Compare values bit by bit where NaN, or bytes that are not UTF-8, make plain equality say no."""
    if a.equals(b):
        return True
    if a.type != b.type or len(a) != len(b):
        return False
    if pa.types.is_string(a.type):
        a, b = a.cast(pa.binary()), b.cast(pa.binary())
    return [repr(v) for v in a.to_pylist()] == [repr(v) for v in b.to_pylist()]


def assert_one_line(error: Exception) -> None:
    assert len(str(error).splitlines()) == 1
    assert len(str(error)) < 1000


def files_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def run_limited(
    code: str, *arguments: str, gibibytes: float = 2.0, timeout: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own that may take so much memory."""
    limit = int(gibibytes * (1 << 30))
    prelude = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", prelude + code, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=timeout,
        check=False,
    )
