"""Measure what the nightly job needs besides the model: memory at two sizes, and rows per second when all is cached.

    python benchmarks/memory.py [--small 100000] [--large 1000000] [--json FILE]

A tiny random model stands in for the real one, whose weights and activations do not depend on the number of rows.

memory   one run a size over short texts, all of them in 5,000 kinds, so that scoring is cheap and the rest shows.
cached   one run over distinct short texts that the label cache holds all of, as on a night without new tickets.
         The cache is filled by this program, not by scoring, which would take longer than everything else here.
"""

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.tiny import CORPUS, save_tiny_model  # noqa: E402
from ticket_etl.cache import MAX_ENTRIES, LabelCache  # noqa: E402
from ticket_etl.labeller import text_key  # noqa: E402
from ticket_etl.verdicts import blank_verdicts  # noqa: E402

COMMAND = Path(sys.executable).with_name("ticket-etl")
LABELS = "".join(f'[[label]]\nname = "{name}"\n' for name in ("billing", "bug", "login"))
ROW_GROUP = 50_000


def write_tickets(path: Path, rows: int, *, kinds: int | None) -> None:
    """Write short tickets: of so many kinds, or all different."""
    words = " ".join(CORPUS).split()
    choose = random.Random(0)

    def text(number: int) -> str:
        return f"{number} " + " ".join(choose.choices(words, k=10))

    known = [text(number) for number in range(kinds)] if kinds else []
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, ROW_GROUP):
            numbers = range(start, min(start + ROW_GROUP, rows))
            texts = [choose.choice(known) if kinds else text(number) for number in numbers]
            writer.write_table(pa.table({"id": pa.array(numbers, pa.int64()), "text": texts}, schema=schema))


def classify(folder: Path, source: Path, *options: str) -> dict[str, float]:
    """Run the command; give its wall seconds, peak memory in MiB, and its report's figures."""
    out = folder / "out.parquet"
    command = [COMMAND, "classify", source, out, "--model", folder / "model", "--labels", folder / "labels.toml"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    process = subprocess.Popen([*map(str, command), *options], env=environment, stderr=subprocess.PIPE)
    _, errors = process.communicate()
    wall = time.monotonic() - started
    if process.returncode:
        raise SystemExit(errors.decode())
    report = json.loads(Path(f"{out}.report.json").read_text(encoding="utf-8"))
    rows, seconds = report["rows"], report["seconds"]
    return {
        "rows": rows["read"],
        "scored": rows["scored"],
        "cached": rows["cached"],
        "peak_mib": report["machine"]["peak_memory_bytes"] / 2**20,
        "wall_seconds": wall,
        "rows_per_second": rows["read"] / wall,
        "rows_per_second_without_loading": rows["read"] / (seconds["run"] - seconds["load"]),
        **{f"{stage}_seconds": spent for stage, spent in seconds.items()},
    }


def fill_cache(folder: Path, source: Path, cache: Path) -> None:
    """Put a verdict for every text into the cache, under the fingerprint that a run on a few rows leaves there."""
    sample = folder / "sample.parquet"
    write_tickets(sample, 100, kinds=None)
    classify(folder, sample, "--cache", str(cache))
    verdict = blank_verdicts(1, 0)
    verdict["label"], verdict["score"], verdict["margin"] = 1, 0.5, 1.25
    with closing(sqlite3.connect(cache)) as connection:
        ((fingerprint,),) = connection.execute("SELECT DISTINCT fingerprint FROM labels").fetchall()
        labels = LabelCache(connection, connection, fingerprint, limit=MAX_ENTRIES)
        for batch in pq.ParquetFile(source).iter_batches(columns=["text"]):
            keys = sorted(text_key(text) for text in batch.column(0).to_pylist())
            labels.put(keys, np.repeat(verdict, len(keys)))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--cached", type=int, default=500_000, metavar="ROWS", help="rows of the cached run")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="ticket-etl-memory-") as name:
        folder = Path(name)
        save_tiny_model(folder / "model")
        (folder / "labels.toml").write_text(LABELS, encoding="utf-8")
        source = folder / "in.parquet"
        for size in (arguments.small, arguments.large):
            if size:
                write_tickets(source, size, kinds=5_000)
                figures[f"memory {size:,} rows"] = classify(folder, source)
        if arguments.cached:
            cache = folder / "labels.sqlite"
            write_tickets(source, arguments.cached, kinds=None)
            fill_cache(folder, source, cache)
            figures[f"cached {arguments.cached:,} rows"] = cached = classify(folder, source, "--cache", str(cache))
            if cached["cached"] != arguments.cached:
                raise SystemExit(f"memory.py: only {cached['cached']:,} of {arguments.cached:,} rows were cached")
    for title, values in figures.items():
        print(f"{title}: " + ", ".join(f"{key} {value:,.1f}" for key, value in values.items()))
    peaks = [values["peak_mib"] for title, values in figures.items() if title.startswith("memory")]
    if len(peaks) == 2:
        print(f"memory grows by {peaks[1] / peaks[0] - 1:+.1%} from {arguments.small:,} to {arguments.large:,} rows")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
