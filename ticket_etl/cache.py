"""Labels across nights: verdicts by fingerprint and text hash in one SQLite file, so that a run scores only new texts.

Several runs may share the file (write-ahead log). It is bounded: at the end of a run, what was used least recently goes
first. A cache is never worth a failed night: one that cannot be read or written is left alone, said once, and the run
scores everything itself.
"""

import hashlib
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ticket_etl.fingerprint import parts_of_text
from ticket_etl.verdicts import FAILED, VERDICT, Verdicts

log = logging.getLogger("ticket_etl")

MAX_ENTRIES = 5_000_000
"""Texts kept, some 80 bytes each."""

_APPLICATION_ID = 0x7469636B  # "tick": tells our files from other SQLite databases
_KEYS_PER_QUERY = 500
_SIZE = VERDICT.itemsize
_BUSY_SECONDS = 30.0


@dataclass(frozen=True)
class KnownVerdicts:
    """What the cache knows of some texts.

    index: text hash -> place in `verdicts`; stale: hashes that were last used before today.
    """

    index: dict[bytes, int] = field(default_factory=dict)
    verdicts: Verdicts = field(default_factory=lambda: np.empty(0, dtype=VERDICT))
    stale: list[bytes] = field(default_factory=list)


class LabelCache:
    """Verdicts of one fingerprint. Made by `open_cache`.

    `get` uses a connection of its own, so that it may be called from another thread than the rest.
    """

    def __init__(self, reader: sqlite3.Connection, writer: sqlite3.Connection, fingerprint: bytes, limit: int) -> None:
        self._reader = reader
        self._writer = writer
        self._fingerprint = fingerprint
        self._limit = limit
        self._today = int(time.time() // 86_400)
        self._failed = False

    def get(self, keys: Sequence[bytes]) -> KnownVerdicts:
        """What is known for these text hashes."""
        rows: list[tuple[bytes, bytes, int]] = []
        with self._forgiving():
            ordered = sorted(keys)  # neighbours in the table share its pages
            for start in range(0, len(ordered), _KEYS_PER_QUERY):
                some = ordered[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(some))
                rows += self._reader.execute(
                    f"SELECT text, CAST(verdict AS BLOB), used FROM labels WHERE fingerprint = ? AND text IN ({marks})",
                    (self._fingerprint, *some),
                )
        rows = [row for row in rows if row[1][_SIZE:] == _checksum(row[0], row[1][:_SIZE])]
        return KnownVerdicts(
            {text: number for number, (text, _, _) in enumerate(rows)},
            np.frombuffer(b"".join(verdict[:_SIZE] for _, verdict, _ in rows), dtype=VERDICT),
            [text for text, _, used in rows if used != self._today],
        )

    def put(self, keys: Sequence[bytes], verdicts: Verdicts) -> None:
        """Keep verdicts; failed ones are not kept, so that they are tried again."""
        kept = np.flatnonzero(verdicts["status"] != FAILED).tolist()
        blobs = ((keys[index], verdicts[index].tobytes()) for index in kept)
        rows = [(self._fingerprint, key, blob + _checksum(key, blob), self._today) for key, blob in blobs]
        if rows:
            with self._forgiving(), self._writer:
                self._writer.executemany("INSERT OR REPLACE INTO labels VALUES (?, ?, ?, ?)", rows)

    def touch(self, known: KnownVerdicts) -> None:
        """Mark entries that served as used today, those that are not so already."""
        if known.stale:
            rows = [(self._today, self._fingerprint, key) for key in known.stale]
            with self._forgiving(), self._writer:
                self._writer.executemany("UPDATE labels SET used = ? WHERE fingerprint = ? AND text = ?", rows)

    def evict(self) -> None:
        """Drop the least recently used entries beyond the limit."""
        with self._forgiving(), self._writer:
            (count,) = self._writer.execute("SELECT count(*) FROM labels").fetchone()
            if count > self._limit:
                self._writer.execute(
                    "DELETE FROM labels WHERE (fingerprint, text) IN"
                    " (SELECT fingerprint, text FROM labels ORDER BY used LIMIT ?)",
                    (count - self._limit,),
                )

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if not self._failed:
                log.warning("the label cache failed (%s); going on without what it could not do", error)
            self._failed = True


def _checksum(key: bytes, verdict: bytes) -> bytes:
    """Tells a damaged entry, which is scored anew."""
    return hashlib.blake2b(key + verdict, digest_size=4).digest()


@contextmanager
def open_cache(
    path: Path | None, fingerprint: Mapping[str, str], *, limit: int = MAX_ENTRIES
) -> Iterator[LabelCache | None]:
    """Open the label cache for a run's fingerprint; None where there is none, or none that works."""
    if path is None:
        yield None
        return
    parts = "\n".join(f"{part}={value}" for part, value in sorted(parts_of_text(fingerprint).items()))
    digest = hashlib.blake2b(parts.encode(), digest_size=16).digest()
    try:
        writer = _connect(path)
    except (sqlite3.Error, ValueError) as error:
        log.warning("cannot use the label cache %s (%s); going on without it", path, error)
        yield None
        return
    with closing(writer), closing(sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)) as reader:
        cache = LabelCache(reader, writer, digest, limit)
        yield cache
        cache.evict()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application != _APPLICATION_ID:
            raise ValueError("it is a database of another program")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS labels (fingerprint BLOB, text BLOB, verdict BLOB NOT NULL,"
                " used INTEGER NOT NULL, PRIMARY KEY (fingerprint, text)) WITHOUT ROWID"
            )
    except BaseException:
        connection.close()
        raise
    return connection
