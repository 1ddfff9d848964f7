"""Parquet tickets: every row decoded once when opened, then streamed losslessly as often as needed.

"Lossless" is meant at the level of Arrow: name, type, nullability, metadata, order and every value of a column. Strings
are carried as bytes and never decoded, so invalid UTF-8 stays as it was stored.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from ticket_etl.errors import InputError
from ticket_etl.tickets.base import Tickets, bounded, is_string, join_texts, resolve_text_columns
from ticket_etl.tickets.files import PARQUET, Part, content_hash
from ticket_etl.tickets.parquet_file import check_sizes, decoding, group_batches, int96_unit, leaves_of, open_parquet
from ticket_etl.tickets.render import as_bytes, json_text, render, unrenderable
from ticket_etl.tickets.unify import conform, unify_schemas


class ParquetTickets(Tickets):
    """One Parquet file, or a data set of several."""

    format = PARQUET

    def __init__(self, name: str, parts: list[Part], folder: str | None, text_columns: Sequence[str]) -> None:
        self.name, self.parts, self.folder = name, parts, folder
        self.codecs: list[str] = []  # of each leaf column, from the first row group
        self.sorting: tuple[pq.SortingColumn, ...] = ()  # what the file declares itself sorted by
        schemas = [self._inspect(part) for part in parts]
        self._units = [int96_unit(part) for part in parts]
        for i, unit in enumerate(self._units):
            if unit is not None:
                schemas[i] = self._schema_in(parts[i], unit)
        self.schema = unify_schemas(schemas, [part.name for part in parts])
        self._text_indices = resolve_text_columns(self.schema, text_columns, name)
        self.text_columns = tuple(self.schema.names[i] for i in self._text_indices)
        self._refuse_unreadable_texts()
        self.num_rows = sum(self._verify(i) for i in range(len(parts)))
        self.content_hash = content_hash(parts, folder=folder is not None)

    def leaf_codecs(self, columns: Sequence[int]) -> list[str]:
        """Give the codec of each leaf of some columns, in order; nothing if the parts' schemas differ."""
        with open_parquet(self.parts[0]) as parquet:
            same = len(self.codecs) == parquet.metadata.num_columns and parquet.schema_arrow.names == self.schema.names
            leaves = leaves_of(parquet, columns) if same else []
        return [self.codecs[leaf] for leaf in (range(len(self.codecs)) if leaves is None else leaves)]

    def _inspect(self, part: Part) -> pa.Schema:
        """Check a part's footer and take from it what the output should keep."""
        with open_parquet(part) as parquet:
            check_sizes(part, parquet)
            with decoding(part):
                metadata = parquet.metadata
                groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
                if (
                    groups
                    and len(self.parts) == 1
                    and all(g.sorting_columns == groups[0].sorting_columns for g in groups)
                ):
                    self.sorting = tuple(groups[0].sorting_columns)
                if metadata.num_columns == 0:
                    raise InputError(f"{part.name}: has no columns; check what wrote it")
                _ = parquet.schema_arrow.names  # names that are not UTF-8 fail here
                return parquet.schema_arrow

    @staticmethod
    def _schema_in(part: Part, unit: str) -> pa.Schema:
        with open_parquet(part, unit) as parquet:
            return parquet.schema_arrow

    def _refuse_unreadable_texts(self) -> None:
        for index in self._text_indices:
            field = self.schema.field(index)
            why = unrenderable(field.type)
            if why:
                raise InputError(f"{self.name}: column '{field.name}' cannot be read as text ({why}); choose another")

    def _verify(self, part_index: int) -> int:
        """Decode every value of a part once, so that damage shows before the work and not after it."""
        part, rows = self.parts[part_index], 0
        with open_parquet(part, self._units[part_index]) as parquet:
            for group in range(parquet.metadata.num_row_groups):
                found = 0
                with decoding(part, f", row group {group}"):
                    for batch in group_batches(parquet, group):
                        batch.validate()
                        found += batch.num_rows
                        self.num_invalid_texts += self._count_invalid(conform(batch, self.schema))
                expected = parquet.metadata.row_group(group).num_rows
                if found != expected:
                    raise InputError(
                        f"{part.name}, row group {group}: {found} rows where the footer says {expected}; write it again"
                    )
                rows += found
                if found and not self.codecs:  # an unknown codec ends the process when asked for before it was decoded
                    info = parquet.metadata.row_group(group)
                    self.codecs = [info.column(i).compression for i in range(info.num_columns)]
        return rows

    def _count_invalid(self, batch: pa.RecordBatch) -> int:
        columns = [batch.column(i) for i in self._text_indices]
        if all(_is_utf8(column) for column in columns):
            return 0
        rows = zip(*(_bytes_of(column) for column in columns), strict=True)
        return sum(
            any(data is not None and "\ufffd" in data.decode("utf-8", "replace") and not _valid(data) for data in row)
            for row in rows
        )

    def texts(self) -> Iterator[list[str | None]]:
        """Give the texts, reading only the text columns."""
        for i, part in enumerate(self.parts):
            with open_parquet(part, self._units[i]) as parquet:
                own = parquet.schema_arrow
                names = [self.schema.names[j] for j in self._text_indices]
                present = [own.get_field_index(name) for name in names]
                leaves = leaves_of(parquet, [p for p in present if p >= 0])
                for group in range(parquet.metadata.num_row_groups):
                    if all(p < 0 for p in present):
                        yield from bounded([None] * parquet.metadata.row_group(group).num_rows)
                        continue
                    for batch in _guarded(group_batches(parquet, group, leaves), part, group):
                        columns = [_texts_of(batch, name) for name in names]
                        yield from bounded(join_texts(columns))

    def batches(self) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Give the carried columns, row group by row group."""
        for i, part in enumerate(self.parts):
            with open_parquet(part, self._units[i]) as parquet:
                for group in range(parquet.metadata.num_row_groups):
                    left = parquet.metadata.row_group(group).num_rows
                    for batch in _guarded(group_batches(parquet, group), part, group):
                        left -= batch.num_rows
                        yield conform(batch, self.schema), left <= 0
                    if parquet.metadata.row_group(group).num_rows == 0:
                        empty = [pa.array([], field.type) for field in self.schema]
                        yield pa.RecordBatch.from_arrays(empty, schema=self.schema), True


def _guarded(batches: Iterator[pa.RecordBatch], part: Part, group: int) -> Iterator[pa.RecordBatch]:
    """Pass batches on, turning errors of the reading (not of whoever consumes them) into InputErrors."""
    while True:
        with decoding(part, f", row group {group}"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _texts_of(batch: pa.RecordBatch, name: str) -> list[str | None]:
    at = batch.schema.get_field_index(name)
    return [None] * batch.num_rows if at < 0 else read_texts(batch.column(at))


def read_texts(array: pa.Array) -> list[str | None]:
    """Give an array's values as ticket texts: 160 -> "160", b"caf\\xe9" -> "caf\\ufffd", null -> None."""
    if pa.types.is_dictionary(array.type):
        values = read_texts(array.dictionary)
        return [None if i is None else values[i] for i in array.indices.to_pylist()]
    if _holds_bytes(array.type):
        if is_string(array.type):
            try:
                return array.to_pylist()
            except UnicodeDecodeError:
                pass
        return [None if data is None else data.decode("utf-8", "replace") for data in as_bytes(array)]
    return [v if v is None or isinstance(v, str) else json_text(v) for v in render(array)]


def _holds_bytes(kind: pa.DataType) -> bool:
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return binary or pa.types.is_fixed_size_binary(kind) or (is_string(kind) and not pa.types.is_dictionary(kind))


def _bytes_of(array: pa.Array) -> list[bytes | None]:
    if pa.types.is_dictionary(array.type):
        values = _bytes_of(array.dictionary)
        return [None if i is None else values[i] for i in array.indices.to_pylist()]
    return as_bytes(array) if _holds_bytes(array.type) else [None] * len(array)


def _is_utf8(array: pa.Array) -> bool:
    if pa.types.is_dictionary(array.type):
        return _is_utf8(array.dictionary)
    if not _holds_bytes(array.type):
        return True
    if is_string(array.type):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True
    return all(data is None or _valid(data) for data in as_bytes(array))


def _valid(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
