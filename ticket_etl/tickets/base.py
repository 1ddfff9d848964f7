"""What every input looks like to the rest of the program, whatever its format."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from ticket_etl.errors import UsageError
from ticket_etl.tickets.files import Part
from ticket_etl.windows import windows

TEXT_NAMES = ("text", "body", "description")
TEXT_BATCH_ROWS = 8192
TEXT_BATCH_BYTES = 16 << 20  # counted in characters, which is within a factor of four


class Tickets(ABC):
    """An input, checked in full when it was opened, that can be streamed any number of times.

    `schema` holds the carried columns as stored, `text_columns` the names of those that make up a ticket's text.
    `num_quarantined` counts records kept out (`write_rejects` writes them), `num_invalid_texts` those whose bytes
    were not UTF-8 and are read with U+FFFD in their place (what is stored is not touched).
    """

    name: str
    format: str
    parts: list[Part]
    folder: str | None
    schema: pa.Schema
    text_columns: tuple[str, ...]
    num_rows: int
    num_quarantined: int = 0
    num_invalid_texts: int = 0
    content_hash: str

    @abstractmethod
    def texts(self) -> Iterator[list[str | None]]:
        """Give the tickets' texts in row order, in batches bounded by rows and by bytes.

        Several text columns are joined by a blank line, leaving out null and blank ones; None if all are null. A value
        that is not a string is read as its JSON text: 160 -> "160".
        """

    @abstractmethod
    def batches(self) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Give all carried columns in row order, in small batches, and whether each is the last of its row group."""

    def write_rejects(self, path: Path) -> None:  # noqa: B027 - most formats have none
        """Write the records that were kept out to `path`."""

    def close(self) -> None:
        """Let go of the files."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def resolve_text_columns(schema: pa.Schema, given: Sequence[str], source: str) -> tuple[int, ...]:
    """Give the indices of the text columns: those given, else text, body, description, or the only string column.

    A struct or list called "body" is not meant unless it is given.
    """
    names = list(schema.names)
    listing = ", ".join(f"{f.name} ({f.type})" for f in schema) or "none"
    listing = listing if len(listing) <= 500 else listing[:499] + "…"
    for column in given:
        if column not in names:
            raise UsageError(f"{source}: there is no column '{column}' to take as text; the columns are: {listing}")
    if len(set(given)) < len(given):
        raise UsageError(f"{source}: a text column is named twice; give each --text-column once")
    chosen = (
        list(given)
        or [f.name for n in TEXT_NAMES for f in schema if f.name == n and not pa.types.is_nested(f.type)][:1]
    )
    if not chosen:
        chosen = list(dict.fromkeys(f.name for f in schema if is_string(f.type)))
        if len(chosen) != 1:
            what = "several string columns" if chosen else "no string column"
            raise UsageError(f"{source}: {what} to take as text; choose with --text-column; the columns are: {listing}")
    for column in chosen:
        if names.count(column) > 1:
            raise UsageError(
                f"{source}: has {names.count(column)} columns named '{column}', so the text is ambiguous; rename one"
            )
    return tuple(names.index(column) for column in chosen)


def is_string(kind: pa.DataType) -> bool:
    """Say whether a column of this type holds strings, directly or through a dictionary."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def join_texts(columns: Sequence[Sequence[str | None]]) -> list[str | None]:
    """Join several text columns row by row: (["a", None, None], ["b", "c", None]) -> ["a\\n\\nb", "c", None]."""
    if len(columns) == 1:
        return list(columns[0])
    return [_join(row) for row in zip(*columns, strict=True)]


def _join(row: Sequence[str | None]) -> str | None:
    if all(text is None for text in row):
        return None
    return "\n\n".join(text for text in row if text is not None and text.strip())


def bounded(texts: Sequence[str | None]) -> Iterator[list[str | None]]:
    """Cut a run of texts into batches within `TEXT_BATCH_ROWS` and `TEXT_BATCH_BYTES`; one long text stands alone."""
    return windows([texts], tickets=TEXT_BATCH_ROWS, characters=TEXT_BATCH_BYTES)
