"""Finished windows on disk, so that a killed run goes on where it stopped; also the lock that keeps OUT to one writer.

The journal is an SQLite database beside OUT: its transactions make a window present whole or not at all, however the
run ends, and its lock belongs to the operating system, which frees it when the process dies. It is bound to a
fingerprint of everything that decides a score; a journal of another fingerprint is started afresh.
"""

import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from ticket_etl.errors import BusyError, OutputError
from ticket_etl.verdicts import FAILED, VERDICT, Verdicts

log = logging.getLogger("ticket_etl")

_COMMIT_SECONDS = 1.0
"""Work that may be lost when the process is killed, beside the window at hand: commits cost a disk flush or three."""

_LONG_NAME = 200
_LAYOUT_VERSION = 1
_ALL_WINDOWS = "SELECT number, verdicts FROM windows ORDER BY number"


class Journal:
    """Verdicts per window. Made by `open_journal`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._committed = 0.0
        self.finished = False

    def bind(self, fingerprint: Mapping[str, str]) -> int:
        """Keep what an earlier run of the same fingerprint scored, drop anything else; return the rows kept.

        Damaged windows are dropped, and those with failed tickets, so that these are tried again.
        """
        found = dict(self._connection.execute("SELECT part, value FROM fingerprint"))
        if found and found != fingerprint:
            changed = sorted(
                part for part in found.keys() | fingerprint.keys() if found.get(part) != fingerprint.get(part)
            )
            log.warning("starting afresh: %s changed since the interrupted run", ", ".join(changed))
        with self._errors_named():
            self._connection.execute("BEGIN")
            if found != fingerprint:
                self._connection.execute("DELETE FROM windows")
                self._connection.execute("DELETE FROM fingerprint")
                self._connection.executemany("INSERT INTO fingerprint VALUES (?, ?)", fingerprint.items())
            kept = sum(self._keep_or_drop(number) for number in sorted(self.numbers()))
            self.commit()
        return kept

    def _keep_or_drop(self, number: int) -> int:
        """The rows of a window that an earlier run recorded; none if it is to be scored again."""
        one_window = "SELECT verdicts, checksum FROM windows WHERE number = ?"
        blob, checksum = self._connection.execute(one_window, (number,)).fetchone()
        if checksum == _checksum(number, blob) and not len(blob) % VERDICT.itemsize:
            verdicts = np.frombuffer(blob, dtype=VERDICT)
            if not (verdicts["status"] == FAILED).any():
                return len(verdicts)
        self._connection.execute("DELETE FROM windows WHERE number = ?", (number,))
        return 0

    def numbers(self) -> frozenset[int]:
        """The numbers of the finished windows."""
        return frozenset(number for (number,) in self._connection.execute("SELECT number FROM windows"))

    def get(self, number: int) -> Verdicts:
        """The verdicts of a finished window."""
        (blob,) = self._connection.execute("SELECT verdicts FROM windows WHERE number = ?", (number,)).fetchone()
        return np.frombuffer(blob, dtype=VERDICT)

    def append(self, number: int, verdicts: Verdicts) -> None:
        """Record a finished window; it is on disk at once, or with the next one if the last was a moment ago."""
        with self._errors_named():
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")
            blob = verdicts.tobytes()
            self._connection.execute("INSERT INTO windows VALUES (?, ?, ?)", (number, blob, _checksum(number, blob)))
            if time.monotonic() - self._committed >= _COMMIT_SECONDS:
                self.commit()

    def commit(self) -> None:
        """Bring every recorded window to the disk."""
        with self._errors_named():
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
        self._committed = time.monotonic()

    def windows(self) -> Iterator[tuple[int, Verdicts]]:
        """The finished windows by number, in row order."""
        for number, blob in self._connection.execute(_ALL_WINDOWS):
            yield number, np.frombuffer(blob, dtype=VERDICT)

    def discard(self) -> None:
        """Have the journal removed when `open_journal` ends: OUT is written."""
        self.finished = True

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise OutputError(
                f"cannot write the journal {self._path}: {error}; free space or choose another OUT"
            ) from error


def _checksum(number: int, blob: bytes) -> bytes:
    """SQLite makes a window whole or absent; this tells if the file itself was damaged since."""
    return hashlib.blake2b(blob, digest_size=8, salt=number.to_bytes(8, "little")).digest()


def journal_path(out: Path) -> Path:
    """Where the journal of OUT lies: beside the file that OUT resolves to."""
    target = Path(os.path.realpath(out))
    name = target.name
    if len(os.fsencode(name)) > _LONG_NAME:  # file systems allow 255 bytes
        name = f"{name[:40]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return target.with_name(f".{name}.journal")


@contextmanager
def open_journal(out: Path) -> Iterator[Journal]:
    """Open OUT's journal and hold OUT's lock. A journal in which no window is done is removed at the end.

    Raises:
        BusyError: another run holds OUT.
        OutputError: the journal cannot be written.
    """
    path = journal_path(out)
    with closing(_connect(path, out)) as connection:
        journal = Journal(connection, path)
        try:
            yield journal
        finally:
            if not journal.finished:
                journal.commit()
            if journal.finished or not journal.numbers():
                # Before the lock goes, so that nobody waits for a file that is gone; with it SQLite's rollback file.
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}-journal").unlink(missing_ok=True)


def _connect(path: Path, out: Path) -> sqlite3.Connection:
    for attempt in ("as found", "afresh"):
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(path, timeout=0, isolation_level=None)
            # Exclusive mode keeps the lock between transactions; FULL makes a commit survive a power cut.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN EXCLUSIVE")
            (layout,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if tables and layout != _LAYOUT_VERSION:
                raise sqlite3.DatabaseError("it has another layout")
            connection.execute(f"PRAGMA user_version = {_LAYOUT_VERSION}")
            connection.execute("CREATE TABLE IF NOT EXISTS fingerprint (part TEXT PRIMARY KEY, value TEXT NOT NULL)")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS windows (number INTEGER PRIMARY KEY, verdicts BLOB, checksum BLOB)"
            )
            connection.execute("COMMIT")
            (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if health != "ok":
                raise sqlite3.DatabaseError(health)
            return connection
        except sqlite3.OperationalError as error:
            if connection is not None:
                connection.close()
            if "locked" in str(error):
                raise BusyError(f"another run is writing {out}; wait for it or stop it") from error
            with contextlib.suppress(OSError):
                if path.stat().st_size == 0:
                    path.unlink()
            raise OutputError(f"cannot write the journal {path}: {error}; check the folder and its space") from error
        except sqlite3.DatabaseError as error:
            if connection is not None:
                connection.close()
            if attempt == "afresh":
                raise OutputError(f"cannot write the journal {path}: {error}") from error
            log.warning("starting afresh: the journal %s is damaged or of another version", path)
            path.unlink(missing_ok=True)
    raise AssertionError("unreachable")
