"""What the tests of the real command share: how to run it, and how to say that it behaved."""

import contextlib
import ctypes
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from tests.bfloat16 import HAS_BFLOAT16, stand_in
from ticket_etl.machine import usable_cores
from ticket_etl.verdicts import VERDICT

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")

COMMAND = Path(sys.executable).with_name("ticket-etl")
SOURCE_TREE = Path(__file__).resolve().parents[2]
OUTPUT_COLUMNS = ["label", "label_score", "label_margin", "label_status"]
TIMEOUT = 120.0
needs_bfloat16 = pytest.mark.skipif(not HAS_BFLOAT16, reason="no bfloat16 matrix products on this processor")
"""For what `start` and `run` do; in `run_warm` the stand-in takes their place."""


@dataclass(frozen=True)
class Outcome:
    """How one process ended."""

    code: int
    out: str
    err: str

    @property
    def error_line(self) -> str:
        """The last line on standard error."""
        return self.err.rstrip("\n").rpartition("\n")[2]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment of these tests: what the process needs to start, none of the caller's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL") if name in os.environ}
    # No bytecode: under a limit on file sizes, Python would leave half a file in the source tree.
    return kept | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"} | more


def start(*arguments: object, environment: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command in a session of its own, so that the test's own signals and terminal stay out of it."""
    settings: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "start_new_session": True,
    }
    command = [os.fspath(COMMAND), *(str(a) for a in arguments)]
    return subprocess.Popen(command, env=dict(environment or clean_environment()), **(settings | options))


def finish(process: subprocess.Popen[bytes], data: bytes | None = None) -> Outcome:
    """Wait for a process, and stop it if it hangs."""
    try:
        out, err = process.communicate(data, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    said, complained = ((stream or b"").decode("utf-8", "surrogateescape") for stream in (out, err))
    return Outcome(process.returncode, said, complained)


def run(*arguments: object, data: bytes | None = None, **options: Any) -> Outcome:
    """Run the command to its end; `data` goes to its standard input."""
    if data is not None:
        options["stdin"] = subprocess.PIPE
    return finish(start(*arguments, **options), data)


def run_warm(
    *arguments: object,
    data: bytes | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    umask: int = 0o022,
) -> Outcome:
    """Run the command in a fresh child of a process that has loaded torch already, which saves most of a short run.

    For tests of what the command does with its input; those of how it starts, and is stopped, use `run` and `start`.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["ticket_etl.pipeline", "ticket_etl.models.loading", "ticket_etl.scoring"])
    with tempfile.TemporaryDirectory() as folder:
        streams = [str(Path(folder, name)) for name in ("in", "out", "err")]
        Path(streams[0]).write_bytes(data or b"")
        variables = dict(environment or clean_environment())
        told = [str(each) for each in arguments]
        child = forks.Process(target=_command, args=(told, variables, cwd or Path.cwd(), umask, *streams))
        child.start()
        child.join(TIMEOUT)
        if child.exitcode is None:
            child.kill()
            raise subprocess.TimeoutExpired(str(arguments), TIMEOUT)
        out, err = (Path(stream).read_text("utf-8", "surrogateescape") for stream in streams[1:])
    return Outcome(child.exitcode, out, err)


def _command(
    arguments: list[str], environment: dict[str, str], cwd: Path, umask: int, source: str, out: str, err: str
) -> None:
    os.chdir(cwd)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    for path, mode, number in ((source, os.O_RDONLY, 0), (out, os.O_WRONLY, 1), (err, os.O_WRONLY, 2)):
        os.dup2(os.open(path, mode | os.O_CREAT), number)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))  # multiprocessing has given it another file
    stand_in(pytest.MonkeyPatch())
    from ticket_etl.cli import main

    main(arguments)


def shell(script: str, *arguments: object, environment: Mapping[str, str] | None = None, **options: Any) -> Outcome:
    """Run a shell script with the command as $0 and arguments as $1..; for pipes, limits and closed streams."""
    command = ["/bin/sh", "-c", script, os.fspath(COMMAND), *map(str, arguments)]
    settings: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=dict(environment or clean_environment()), **(settings | options))
    return finish(process)


def names_in(folder: Path) -> set[str]:
    """Everything in a folder, hidden files too."""
    return {entry.name for entry in folder.iterdir()}


def digest(path: Path) -> str:
    """A file's content in short."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_report(out: Path) -> dict[str, Any]:
    """The report of a run: strict JSON, and its rows add up."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in a strict JSON file")

    text = out.with_name(out.name + ".report.json").read_bytes().decode("utf-8")
    report: dict[str, Any] = json.loads(text, parse_constant=refuse)
    rows = report["rows"]
    outcomes = ("labelled", "abstained", "empty", "failed", "quarantined")
    assert rows["read"] == sum(rows[outcome] for outcome in outcomes)
    return report


def assert_tidy_streams(outcome: Outcome) -> None:
    """Nothing on standard output, nothing meant for a terminal or a programmer on standard error."""
    assert outcome.out == ""
    assert "\r" not in outcome.err
    assert "\x1b" not in outcome.err
    assert "Traceback" not in outcome.err
    assert "Warning" not in outcome.err


def assert_done(outcome: Outcome, code: int = 0) -> None:
    """The run did its work."""
    assert outcome.code == code, outcome.err
    assert_tidy_streams(outcome)


def assert_refused(outcome: Outcome, code: int, *words: str) -> None:
    """The run ended with this code and one line that has these words."""
    assert outcome.code == code, outcome.err
    assert_tidy_streams(outcome)
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("ticket-etl: error: "), outcome.err
    for word in words:
        assert word in outcome.err


def assert_lossless(source: Path, out: Path, new_columns: list[str] | None = None) -> None:
    """Every input column came back, and the new columns stand behind them."""
    before, after = pq.ParquetFile(source), pq.ParquetFile(out)
    table_in, table_out = before.read(), after.read()
    count = table_in.num_columns
    assert table_out.schema.names[count:] == (new_columns or OUTPUT_COLUMNS)
    for index in range(count):
        field_in, field_out = table_in.schema.field(index), table_out.schema.field(index)
        assert field_out.equals(field_in, check_metadata=True)
        assert table_out.column(index).combine_chunks().equals(table_in.column(index).combine_chunks())
    metadata_in, metadata_out = table_in.schema.metadata or {}, table_out.schema.metadata or {}
    assert metadata_in.items() <= metadata_out.items()
    if before.metadata.num_row_groups:
        groups = [before.metadata.row_group(i) for i in range(before.metadata.num_row_groups)]
        written = [after.metadata.row_group(i) for i in range(after.metadata.num_row_groups)]
        assert [group.num_rows for group in written] == [group.num_rows for group in groups]
        if table_in.num_rows:
            codecs = [groups[0].column(i).compression for i in range(groups[0].num_columns)]
            assert [written[0].column(i).compression for i in range(len(codecs))] == codecs


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something has come about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def write_labels(path: Path, *names: str) -> Path:
    """A short label file."""
    path.write_text("".join(f"[[label]]\nname = {json.dumps(name, ensure_ascii=False)}\n" for name in names), "utf-8")
    return path


def without_powers() -> None:
    """Give up root's right to ignore permissions, in a process about to start; does nothing to other users."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
                raise OSError(ctypes.get_errno(), "cannot give up a capability")


def rows_in(journal: Path) -> int:
    """Rows that a journal holds, read from a copy; -1 if it cannot be read just now."""
    with tempfile.TemporaryDirectory() as folder:
        copies = []
        for path in (journal.with_name(journal.name + "-journal"), journal):
            if path.exists():
                with contextlib.suppress(FileNotFoundError):
                    copies.append(shutil.copy(path, folder))
        if not copies or not copies[-1].endswith(".journal"):
            return -1
        with contextlib.closing(sqlite3.connect(copies[-1])) as connection:
            try:
                blobs = connection.execute("SELECT verdicts FROM windows").fetchall()
            except sqlite3.Error:
                return -1
        return sum(len(blob) for (blob,) in blobs) // VERDICT.itemsize


def chosen(request: pytest.FixtureRequest, test: Callable[..., object], parameter: str) -> list[Any]:
    """The values of a test's parameter that this session runs."""
    items = [item for item in request.session.items if getattr(item, "function", None) is test]
    return [item.callspec.params[parameter] for item in items]  # type: ignore[attr-defined]


def in_parallel(work: Callable[[K], R], keys: Iterable[K]) -> dict[K, R]:
    """Do the work for each key on all cores; most of each run is loading torch, which one core does."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        results = {key: pool.submit(work, key) for key in keys}
        return {key: result.result() for key, result in results.items()}


def slow_but(fast: Iterable[object], values: Iterable[Any], name: Callable[[Any], str] = str) -> list[Any]:
    """Parameters that are all slow but some: each starts a process, and one of a kind is enough for a quick look."""
    kept = list(fast)
    return [
        pytest.param(value, id=name(value), marks=() if value in kept or name(value) in kept else pytest.mark.slow)
        for value in values
    ]
