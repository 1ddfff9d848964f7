"""JSON Lines tickets: every line checked when opened, its bytes kept for the output.

The rules for lines stand in `jsonl_lines`, for records in `jsonl_records`, for columns in `jsonl_schema`. Blank lines
are skipped. A bad line stops the run with its number and reason, or (`bad_records="quarantine"`) goes, byte for byte,
to the rejects file: one JSON object per bad line with `file`, `line`, `reason`, and `raw` (or `raw_base64` where the
line is not UTF-8). If no line at all is a record, the file is refused either way. A file without any line is an
input of no tickets. The rejects file of an earlier run is replaced, and removed when there is nothing to reject.
"""

import base64
import contextlib
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import InputError, OutputError, UsageError
from ticket_etl.tickets.base import TEXT_NAMES, Tickets, bounded, join_texts, resolve_text_columns
from ticket_etl.tickets.files import JSONL, Part, content_hash
from ticket_etl.tickets.jsonl_lines import line_blocks
from ticket_etl.tickets.jsonl_records import BadRecordError, Record, advice_for, is_blank, parse_record
from ticket_etl.tickets.jsonl_schema import SchemaOfRecords
from ticket_etl.tickets.render import json_text

ARROW_ROWS = 4096


class JsonlTickets(Tickets):
    """One JSON Lines file, standard input, or a data set of several files."""

    format = JSONL

    def __init__(
        self,
        name: str,
        parts: list[Part],
        folder: str | None,
        text_columns: Sequence[str],
        bad_records: str,
        rejects_path: Path | None,
    ) -> None:
        self.name, self.parts, self.folder = name, parts, folder
        self._columns = SchemaOfRecords()
        self._bad = [array("Q") for _ in parts]  # numbers of the quarantined lines of each part
        self.num_rows = 0
        with contextlib.ExitStack() as stack:
            rejects = _Rejects(stack, rejects_path, parts) if bad_records == "quarantine" else None
            for index in range(len(parts)):
                self._scan(index, rejects)
            self.num_quarantined = sum(map(len, self._bad))
            if rejects:
                rejects.finish(self.num_rows)
            self.schema = self._columns.finish()
            self.text_columns = self._resolve(text_columns)
            self.content_hash = content_hash(parts, folder=folder is not None)
        if rejects and not self.num_quarantined and rejects_path:
            _remove(rejects_path)

    def _resolve(self, given: Sequence[str]) -> tuple[str, ...]:
        if self.num_rows == 0:  # no records, so no keys to choose from
            return tuple(given) or TEXT_NAMES[:1]
        return tuple(self.schema.names[i] for i in resolve_text_columns(self.schema, given, self.name))

    @property
    def parquet_problem(self) -> str | None:
        """Say why the records cannot become columns, if they cannot."""
        return "more different keys than columns are written" if self._columns.too_many_columns else None

    def _scan(self, index: int, rejects: "_Rejects | None") -> None:
        """Check every line of a part, and learn the schema."""
        part = self.parts[index]
        for first, lines in line_blocks(part):
            records: list[Record] = []
            for number, line in enumerate(lines, first):
                if is_blank(line):
                    continue
                try:
                    records.append(parse_record(line))
                except BadRecordError as error:
                    reason = str(error)
                    if rejects is None:
                        raise InputError(f"{part.name}, line {number}: {reason}; {advice_for(line, reason)}") from None
                    self._bad[index].append(number)
                    rejects.add(part, number, reason, line)
            self._columns.observe(records)
            self.num_rows += len(records)

    def records(self) -> Iterator[list[bytes]]:
        """Give the accepted lines, their bytes as stored, without the newline."""
        for part, bad in zip(self.parts, self._bad, strict=True):
            rejected = iter(bad)
            skip = next(rejected, 0)
            for first, lines in line_blocks(part):
                good = []
                for number, line in enumerate(lines, first):
                    if number == skip:
                        skip = next(rejected, 0)
                    elif not is_blank(line):
                        good.append(line)
                if good:
                    yield good

    def texts(self) -> Iterator[list[str | None]]:
        """Give the texts; a value that is not a string is read as its JSON text."""
        for lines in self.records():
            records = [parse_record(line) for line in lines]
            columns = [[_text(record.get(name)) for record in records] for name in self.text_columns]
            yield from bounded(join_texts(columns))

    def batches(self) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Give the records as columns; JSON Lines have no row groups."""
        for lines in self.records():
            for start in range(0, len(lines), ARROW_ROWS):
                yield self._columns.to_arrow([parse_record(line) for line in lines[start : start + ARROW_ROWS]]), False


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path}: an earlier run's rejects cannot be removed ({error.strerror}); remove it"
        ) from error


def _text(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value)


class _Rejects:
    """The file of bad lines, begun with the first one and put in place when the input turns out well."""

    def __init__(self, stack: contextlib.ExitStack, path: Path | None, parts: Sequence[Part]) -> None:
        self._stack, self._path = stack, path
        self._file: BinaryIO | None = None
        self._first: tuple[str, int, str, str] | None = None
        for part in parts:
            if path is not None and part.path is not None and path.exists() and os.path.samefile(path, part.path):  # noqa: PTH121
                raise UsageError(f"{path}: is the input, and would be replaced by its own rejects; rename one")

    def add(self, part: Part, number: int, reason: str, line: bytes) -> None:
        """Write one bad line."""
        if self._first is None:
            self._first = (part.name, number, reason, advice_for(line, reason))
        if self._path is None:
            return
        if self._file is None:
            self._file = self._stack.enter_context(replace_atomically(self._path))
        entry: dict[str, object] = {
            "file": part.name.encode("utf-8", "backslashreplace").decode(),
            "line": number,
            "reason": reason,
        }
        try:
            entry["raw"] = line.decode()
        except UnicodeDecodeError:
            entry["raw_base64"] = base64.b64encode(line).decode("ascii")
        self._file.write(json_text(entry).encode() + b"\n")

    def finish(self, num_good: int) -> None:
        """Refuse an input without a single good line: that is another format, not some bad records."""
        if self._first is not None and num_good == 0:
            name, number, reason, advice = self._first
            raise InputError(f"{name}: no line is a record (line {number}: {reason}); {advice}")
