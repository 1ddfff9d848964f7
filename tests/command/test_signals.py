"""Two runs at once, signals of every kind, and readers that go away."""

import os
import pty
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from tests.command.support import (
    SOURCE_TREE,
    assert_done,
    assert_refused,
    assert_tidy_streams,
    digest,
    finish,
    names_in,
    read_report,
    rows_in,
    run,
    run_warm,
    shell,
    slow_but,
    start,
    wait_for,
)

OLD = b"yesterday's output"


@pytest.fixture
def long_job(tmp_path: Path, quick: list[str], out: Path) -> list[str]:
    """A job that scores for some seconds over an OUT that exists."""
    texts = [f"{number} I was billed twice and cannot log in" for number in range(3000)]
    pq.write_table(pa.table({"id": pa.array(range(3000), pa.int64()), "text": texts}), tmp_path / "long.parquet")
    out.write_bytes(OLD)
    return ["classify", str(tmp_path / "long.parquet"), str(out), *quick, "--window-tickets", "8"]


def scoring(out: Path) -> bool:
    """Whether a run has begun to keep what it has scored."""
    return rows_in(out.with_name(f".{out.name}.journal")) > 0


@pytest.mark.slow
def test_second_run_is_refused_at_once(
    long_job: list[str], out: Path, tickets: Path, quick: list[str], setup_folder: Path, tmp_path: Path
) -> None:
    """While one run holds OUT, others exit 6 before they load anything, by any spelling, and do it no harm."""
    broken = Path(shutil.copytree(setup_folder / "model", tmp_path / "broken"))
    save_file({"exit 7 if this is loaded": torch.zeros(1)}, broken / "model.safetensors", metadata={"format": "pt"})
    link = out.with_name("link.parquet")
    link.symlink_to(out)
    first = start(*long_job)
    wait_for(lambda: first.poll() is not None or scoring(out))
    first.send_signal(signal.SIGSTOP)  # it keeps its lock, and cannot end before the others have tried
    before = names_in(out.parent)
    for spelling in (out, link, out.parent / ".." / out.parent.name / out.name):
        assert_refused(run_warm("classify", tickets, spelling, *quick, "--model", broken), 6, "another run")
        assert names_in(out.parent) == before
        assert out.read_bytes() == OLD
    first.send_signal(signal.SIGCONT)
    assert_done(finish(first))
    assert_refused(run_warm("classify", tickets, out.with_name("new.parquet"), *quick, "--model", broken), 7)
    assert pq.read_metadata(out).num_rows == 3000
    assert read_report(out)["rows"]["scored"] == 3000
    assert names_in(out.parent) == {"out.parquet", "out.parquet.report.json", "link.parquet"}


@pytest.mark.slow
def test_lock_dies_with_its_owner(long_job: list[str], out: Path) -> None:
    """After kill -9 of the holder the lock is free, and another job may have the same OUT."""
    first = start(*long_job)
    wait_for(lambda: first.poll() is not None or scoring(out))
    first.kill()
    assert finish(first).code == -signal.SIGKILL
    outcome = run_warm(*long_job)
    assert_done(outcome)
    assert "resuming" in outcome.err
    assert names_in(out.parent) == {"out.parquet", "out.parquet.report.json"}


@pytest.mark.slow
def test_starting_together_leaves_one_winner(tickets: Path, out: Path, quick: list[str]) -> None:
    """Of four runs started at once, one at least succeeds, the others exit 6 or succeed later; OUT is whole."""
    processes = [start("classify", tickets, out, *quick) for _ in range(4)]
    codes = sorted(finish(process).code for process in processes)
    assert codes[0] == 0
    assert set(codes) <= {0, 6}
    assert pq.read_table(out).num_rows == 5
    assert names_in(out.parent) == {"out.parquet", "out.parquet.report.json"}


@pytest.mark.slow
def test_closing_terminal_stops_the_run(long_job: list[str], out: Path) -> None:
    """SIGHUP ends like SIGTERM: exit 129, old OUT, the journal kept; so does a signal that comes twice."""
    for signum, times in ((signal.SIGHUP, 1), (signal.SIGTERM, 2), (signal.SIGINT, 5)):
        out.with_name(".out.parquet.journal").unlink(missing_ok=True)
        process = start(*long_job)
        wait_for(lambda: process.poll() is not None or scoring(out))  # noqa: B023
        for _ in range(times):
            process.send_signal(signum)
            time.sleep(0.01)
        outcome = finish(process)
        assert outcome.code == 128 + signum, outcome.err
        assert_tidy_streams(outcome)
        assert outcome.error_line.startswith(f"ticket-etl: error: stopped by {signum.name}")
        assert out.read_bytes() == OLD
        assert names_in(out.parent) == {"out.parquet", ".out.parquet.journal"}


@pytest.mark.slow
def test_ignored_signals_stay_ignored(tickets: Path, out: Path, quick: list[str]) -> None:
    """What the parent ignores (nohup, a background job of a shell) does not stop the run."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = start("classify", tickets, out, *quick, preexec_fn=ignore)
    while process.poll() is None:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert_done(finish(process))
    assert pq.read_table(out).num_rows == 5


def test_signal_before_the_work_leaves_nothing(tickets: Path, out: Path, quick: list[str]) -> None:
    """Stopped during start-up: by the program or by the system, but never with a traceback or a file."""
    for delay in (0.1, 0.3, 0.5):
        process = start("classify", tickets, out, *quick)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        outcome = finish(process)
        assert outcome.code in (143, -signal.SIGTERM)
        assert_tidy_streams(outcome)
        assert names_in(out.parent) == set()


@pytest.mark.parametrize("command", slow_but(["--help"], ["plan", "labels", "model list", "--help"]))
def test_reader_that_goes_away(command: str, tickets: Path, setup_folder: Path, quick: list[str]) -> None:
    """A reader that has closed the pipe ends the command quietly."""
    arguments = {
        "plan": ["plan", tickets, *quick],
        "labels": ["labels", setup_folder / "labels.toml", "--model", setup_folder / "model"],
        "model list": ["model", "list"],
        "--help": ["--help"],
    }[command]
    outcome = shell('{ sleep 0.1; "$0" "$@"; echo "exit $?" >&2; } | true', *arguments)
    assert outcome.out == ""
    assert outcome.err in ("exit 141\n", "exit 1\n", "exit 0\n")


@pytest.mark.slow
def test_log_reader_that_goes_away(tickets: Path, out: Path, quick: list[str]) -> None:
    """A closed pipe on standard error costs the messages, not the labels."""
    outcome = shell('{ "$0" "$@" 2>&1; } | true', "classify", tickets, out, *quick)
    assert (outcome.out, outcome.err) == ("", "")
    assert pq.read_table(out).num_rows == 5
    assert names_in(out.parent) == {"out.parquet", "out.parquet.report.json"}


@pytest.mark.slow
def test_full_standard_output(tickets: Path, quick: list[str]) -> None:
    """Standard output on a full disk: one line that says so, and not exit 0."""
    outcome = shell('"$0" "$@" > /dev/full', "plan", tickets, *quick)
    assert_refused(outcome, outcome.code or -1, "No space left on device")


@pytest.mark.slow
def test_terminal_gets_a_bar_and_a_log_does_not(tickets: Path, out: Path, quick: list[str]) -> None:
    """On a terminal progress is drawn; in a file there is no carriage return, and with --quiet nothing at all."""
    ours, theirs = pty.openpty()
    process = start("classify", tickets, out, *quick, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:
            piece = b""
        if not piece:
            break
        drawn += piece
    os.close(ours)
    process.wait()
    assert process.returncode == 0
    assert b"scoring" in drawn
    assert b"\r" in drawn.replace(b"\r\n", b"\n")
    outcome = run_warm("classify", tickets, out, *quick, "--quiet")
    assert_done(outcome)
    assert outcome.err == ""


@pytest.mark.slow
def test_repeated_run_writes_the_same_bytes(tickets: Path, out: Path, quick: list[str]) -> None:
    """The same command twice: the same OUT, byte for byte, whatever is in the way of the current folder."""
    assert_done(run("classify", tickets, out, *quick))
    first = digest(out)
    assert_done(run_warm("classify", os.path.relpath(tickets, SOURCE_TREE), out, *quick, cwd=SOURCE_TREE))
    assert digest(out) == first
