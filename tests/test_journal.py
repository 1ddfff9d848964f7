"""What survives a run that is stopped at any moment, and that one run at a time writes an output."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from ticket_etl.errors import BusyError, OutputError
from ticket_etl.fingerprint import fingerprint_text
from ticket_etl.journal import journal_path, open_journal
from ticket_etl.verdicts import EMPTY, FAILED, OK, Verdicts, blank_verdicts

PRINT = {"input": "abc", "labels": '["a", "b"]', "model": "tiny 1"}


def some_verdicts(count: int, seed: int = 0) -> Verdicts:
    verdicts = blank_verdicts(count, OK)
    random = np.random.default_rng(seed)
    verdicts["label"] = random.integers(0, 5, count)
    verdicts["score"] = random.random(count)
    verdicts["margin"] = random.random(count)
    return verdicts


def write_windows(out: Path, windows: dict[int, Verdicts], fingerprint: dict[str, str] = PRINT) -> None:
    """As a run would leave it that was stopped after these windows."""
    with open_journal(out) as journal:
        journal.bind(fingerprint)
        for number, verdicts in windows.items():
            journal.append(number, verdicts)


def stopped_run(out: Path, windows: dict[int, Verdicts]) -> None:
    """A run that someone stops after these windows."""
    with open_journal(out) as journal:
        journal.bind(PRINT)
        for number, verdicts in windows.items():
            journal.append(number, verdicts)
        raise KeyboardInterrupt


def reopen(out: Path, fingerprint: dict[str, str] = PRINT) -> dict[int, Verdicts]:
    """The windows that a later run finds."""
    with open_journal(out) as journal:
        kept = journal.bind(fingerprint)
        found = {number: verdicts.copy() for number, verdicts in journal.windows()}
        assert kept == sum(map(len, found.values()))
        assert journal.numbers() == found.keys()
        assert all(same(journal.get(number), verdicts) for number, verdicts in found.items())
        return found


def same(one: Verdicts, other: Verdicts) -> bool:
    return one.tobytes() == other.tobytes()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.parquet"


def test_windows_come_back_as_they_were(out: Path) -> None:
    """Every bit, NaN included, in row order whatever the order of writing."""
    windows = {2: some_verdicts(3, 2), 0: some_verdicts(4, 0), 1: blank_verdicts(2, EMPTY)}
    write_windows(out, windows)
    found = reopen(out)
    assert list(found) == [0, 1, 2]
    assert all(same(found[number], verdicts) for number, verdicts in windows.items())
    assert all(same(found[number], verdicts) for number, verdicts in reopen(out).items())


def test_journal_lies_beside_the_resolved_output(tmp_path: Path) -> None:
    """Two spellings of one output share it."""
    (tmp_path / "data").mkdir()
    link = tmp_path / "link.parquet"
    link.symlink_to(tmp_path / "data" / "real.parquet")
    expected = tmp_path / "data" / ".real.parquet.journal"
    assert journal_path(link) == journal_path(tmp_path / "data" / ".." / "data" / "real.parquet") == expected


def test_outputs_do_not_share_a_journal(tmp_path: Path) -> None:
    with open_journal(tmp_path / "a.parquet"), open_journal(tmp_path / "b.parquet"):
        pass


def test_discarded_journal_leaves_nothing(out: Path) -> None:
    write_windows(out, {0: some_verdicts(3)})
    with open_journal(out) as journal:
        journal.bind(PRINT)
        journal.append(1, some_verdicts(2))
        journal.discard()
    assert list(out.parent.iterdir()) == []


def test_journal_without_a_window_is_removed(out: Path) -> None:
    """Whether the run ended well or not."""
    with open_journal(out) as journal:
        journal.bind(PRINT)
    assert list(out.parent.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        stopped_run(out, {})
    assert list(out.parent.iterdir()) == []


def test_run_that_fails_keeps_its_windows(out: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped_run(out, {0: some_verdicts(3)})
    assert list(reopen(out)) == [0]
    assert [path.name for path in out.parent.iterdir()] == [journal_path(out).name]


def test_first_run_says_nothing(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert reopen(out) == {}
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({**PRINT, "labels": '["b", "a"]'}, ["labels"]),
        ({**PRINT, "input": "x", "model": "tiny 2"}, ["input", "model"]),
        ({**PRINT, "dtype": "float32"}, ["dtype"]),
        ({"input": "abc", "model": "tiny 1"}, ["labels"]),
    ],
)
def test_another_fingerprint_starts_afresh(
    out: Path, caplog: pytest.LogCaptureFixture, changed: dict[str, str], named: list[str]
) -> None:
    """It says once what changed, and the new fingerprint is the one that counts from then on."""
    write_windows(out, {0: some_verdicts(3)})
    with open_journal(out) as journal:
        assert journal.bind(changed) == 0
        assert journal.numbers() == frozenset()
        journal.append(7, some_verdicts(2))
    assert caplog.messages == [f"starting afresh: {', '.join(named)} changed since the interrupted run"]
    assert list(reopen(out, changed)) == [7]
    assert len(caplog.messages) == 1
    assert reopen(out, PRINT) == {}


def test_windows_with_failed_tickets_are_tried_again(out: Path) -> None:
    """The others are kept."""
    broken = some_verdicts(3)
    broken[1] = blank_verdicts(1, FAILED)[0]
    write_windows(out, {0: some_verdicts(2), 1: broken, 2: some_verdicts(4)})
    assert list(reopen(out)) == [0, 2]


def test_interrupted_append_is_not_there(out: Path) -> None:
    """A window is present whole or not at all, and can be recorded again."""

    class Stopped(BaseException):
        pass

    class Verdictless:
        def tobytes(self) -> bytes:
            raise Stopped

    with open_journal(out) as journal:
        journal.bind(PRINT)
        journal.append(0, some_verdicts(2))
        with pytest.raises(Stopped):
            journal.append(1, Verdictless())
        assert journal.numbers() == {0}
        journal.append(1, some_verdicts(2))
    assert list(reopen(out)) == [0, 1]


def test_window_recorded_twice_is_an_error(out: Path) -> None:
    with open_journal(out) as journal:
        journal.bind(PRINT)
        journal.append(0, some_verdicts(2))
        with pytest.raises(OutputError, match=r"cannot write the journal .*out\.parquet\.journal"):
            journal.append(0, some_verdicts(2))


# Damage


@pytest.mark.parametrize("content", [b"not a database" * 400, b"\0" * 9000], ids=["text", "zeros"])
def test_file_that_is_no_journal_starts_afresh(out: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    journal_path(out).write_bytes(content)
    assert reopen(out) == {}
    assert caplog.messages == [f"starting afresh: the journal {journal_path(out)} is damaged or of another version"]
    write_windows(out, {0: some_verdicts(2)})
    assert list(reopen(out)) == [0]


def test_journal_of_another_layout_starts_afresh(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(sqlite3.connect(journal_path(out))) as other:
        other.execute("CREATE TABLE windows (something TEXT)")
    assert reopen(out) == {}
    assert "of another version" in caplog.text


def test_empty_file_is_a_new_journal(out: Path) -> None:
    """As left by a run that was killed while it made the journal."""
    journal_path(out).touch()
    assert reopen(out) == {}


@pytest.mark.parametrize("bytes_lost", [1, 10, 5000, 60_000, 90_000])
def test_journal_that_lost_its_end_keeps_whole_windows_only(out: Path, bytes_lost: int) -> None:
    """Never a torn window, and never an error that stands until someone removes the file."""
    written = {number: some_verdicts(2000, number) for number in range(4)}
    write_windows(out, written)
    path = journal_path(out)
    path.write_bytes(path.read_bytes()[:-bytes_lost])
    kept = reopen(out)
    assert len(kept) < len(written)
    assert all((verdicts == written[number]).all() for number, verdicts in kept.items())
    write_windows(out, {9: some_verdicts(2)})
    assert 9 in reopen(out)


@pytest.mark.parametrize("page", [0, 1, 2, 3, 5])
def test_journal_with_a_page_of_rubbish_starts_afresh_or_goes_on(out: Path, page: int) -> None:
    """SQLite notices rubbish in the pages it reads by; that is no error of the run."""
    write_windows(out, {number: some_verdicts(2000, number) for number in range(4)})
    content = bytearray(journal_path(out).read_bytes())
    content[4096 * page : 4096 * (page + 1)] = b"\xff" * 4096
    journal_path(out).write_bytes(content)
    with open_journal(out) as journal:
        journal.bind(PRINT)
        number = max(journal.numbers(), default=-1) + 1
        journal.append(number, some_verdicts(2))
        assert same(journal.get(number), some_verdicts(2))


# One writer

HOLDER = """
import sys, time
from pathlib import Path
from ticket_etl.journal import open_journal
from ticket_etl.verdicts import OK, blank_verdicts
with open_journal(Path(sys.argv[1])) as journal:
    journal.bind({"input": "abc"})
    journal.append(0, blank_verdicts(3, OK))
    journal.append(1, blank_verdicts(2, OK))
    journal.commit()
    if sys.argv[2] == "writing":
        journal._connection.execute("BEGIN")
        journal._connection.execute("INSERT INTO windows VALUES (2, x'00', x'00')")
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another_run(out: Path, doing: str = "writing") -> Iterator[subprocess.Popen]:
    """A process that has recorded two windows and is scoring the third, or in the middle of writing it."""
    command = [sys.executable, "-c", HOLDER, str(out), doing]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"}) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("doing", ["scoring", "writing"])
def test_second_process_is_refused_until_the_first_is_killed(out: Path, doing: str) -> None:
    """SIGKILL frees the lock; finished windows are there, the unfinished one is not."""
    with another_run(out, doing) as process:
        for _ in range(2):
            with pytest.raises(BusyError, match=r"another run is writing .*out\.parquet"), open_journal(out):
                pass
        assert journal_path(out).exists()
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = reopen(out, {"input": "abc"})
    assert {number: len(verdicts) for number, verdicts in found.items()} == {0: 3, 1: 2}


def test_run_that_was_killed_leaves_no_stray_file_behind_the_one_that_resumes(out: Path) -> None:
    """Though nothing was left to score: SQLite's own rollback file goes too."""
    with another_run(out) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with open_journal(out) as journal:
        assert journal.bind({"input": "abc"}) == 5
        journal.discard()
    assert list(out.parent.iterdir()) == []


def test_lock_is_held_to_the_end_even_after_discard(out: Path) -> None:
    """The report is still to be written then."""
    with open_journal(out) as journal:
        journal.bind(PRINT)
        journal.append(0, some_verdicts(2))
        journal.discard()
        with pytest.raises(BusyError), open_journal(out):
            pass


def test_lock_is_free_once_the_run_has_ended(out: Path) -> None:
    write_windows(out, {0: some_verdicts(2)})
    assert list(reopen(out)) == [0]


def test_missing_folder_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write the journal"), open_journal(tmp_path / "none" / "out.parquet"):
        pass


def test_folder_in_place_of_the_journal_is_an_output_error(out: Path) -> None:
    journal_path(out).mkdir()
    with pytest.raises(OutputError, match="cannot write the journal"), open_journal(out):
        pass


def test_fingerprint_text_is_equal_for_equal_values() -> None:
    assert fingerprint_text({"b": 1, "a": [Path("x")]}) == fingerprint_text({"a": [Path("x")], "b": 1})
    assert fingerprint_text(["a", "b"]) != fingerprint_text(["b", "a"])
    assert fingerprint_text(["a", "b"]) != fingerprint_text(["a, b"])
