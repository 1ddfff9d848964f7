"""JSON Lines tickets: every line checked when opened, its bytes kept for the output.

The rules for lines stand in `jsonl_lines`, for records in `jsonl_records`, for columns in `jsonl_schema`. Blank lines
are skipped. A bad line stops the run with its number and reason, or (`bad_records="quarantine"`) goes, byte for byte,
to the rejects file: one JSON object per bad line with `file`, `line`, `reason`, and `raw` (or `raw_base64` where the
line is not UTF-8). If no line at all is a record, the file is refused either way. A file without any line is an
input of no tickets. The rejects file is written once the run has succeeded; an earlier one is replaced, and removed
when there is nothing to reject.
"""

import base64
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import InputError, OutputError
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
    ) -> None:
        self.name, self.parts, self.folder = name, parts, folder
        self._columns = SchemaOfRecords()
        self._bad = [array("Q") for _ in parts]  # numbers of the quarantined lines of each part
        self.num_rows = 0
        self._quarantines = bad_records == "quarantine"
        for index in range(len(parts)):
            self._scan(index)
        self.num_quarantined = sum(map(len, self._bad))
        if self.num_quarantined and not self.num_rows:
            self._refuse_other_format()
        self.schema = self._columns.finish()
        self.text_columns = self._resolve(text_columns)
        self.content_hash = content_hash(parts, folder=folder is not None)

    def _resolve(self, given: Sequence[str]) -> tuple[str, ...]:
        if self.num_rows == 0:  # no records, so no keys to choose from
            return tuple(given) or TEXT_NAMES[:1]
        return tuple(self.schema.names[i] for i in resolve_text_columns(self.schema, given, self.name))

    @property
    def parquet_problem(self) -> str | None:
        """Say why the records cannot become columns, if they cannot."""
        return "more different keys than columns are written" if self._columns.too_many_columns else None

    def _scan(self, index: int) -> None:
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
                    if not self._quarantines:
                        raise InputError(f"{part.name}, line {number}: {reason}; {advice_for(line, reason)}") from None
                    self._bad[index].append(number)
            self._columns.observe(records)
            self.num_rows += len(records)

    def _rejected(self) -> Iterator[tuple[Part, int, bytes]]:
        """Give the quarantined lines with their part and number."""
        for part, bad in zip(self.parts, self._bad, strict=True):
            wanted = iter(bad)
            next_bad = next(wanted, 0)
            for first, lines in line_blocks(part) if next_bad else ():
                while first <= next_bad < first + len(lines):
                    yield part, next_bad, lines[next_bad - first]
                    next_bad = next(wanted, 0)

    def _refuse_other_format(self) -> None:
        """An input without a single good line is another format, not some bad records."""
        part, number, line = next(self._rejected())
        reason = _reason(line)
        raise InputError(
            f"{part.name}: no line is a record (line {number}: {reason}); {advice_for(line, reason)}"
        ) from None

    def write_rejects(self, path: Path) -> None:
        """Write the quarantined lines to `path`, or remove an earlier run's where there are none."""
        if not self._quarantines:
            return
        if not self.num_quarantined:
            _remove(path)
            return
        with replace_atomically(path) as file:
            for part, number, line in self._rejected():
                file.write(json_text(_entry(part, number, line)).encode() + b"\n")

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


def _reason(line: bytes) -> str:
    try:
        parse_record(line)
    except BadRecordError as error:
        return str(error)
    raise InputError("the input changed while it was read; run again once it is complete")


def _entry(part: Part, number: int, line: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "file": part.name.encode("utf-8", "backslashreplace").decode(),
        "line": number,
        "reason": _reason(line),
    }
    try:
        return entry | {"raw": line.decode()}
    except UnicodeDecodeError:
        return entry | {"raw_base64": base64.b64encode(line).decode("ascii")}
