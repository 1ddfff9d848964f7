"""Open one Parquet file, refusing in one line what is damaged, encrypted or hostile.

The order of the checks matters. One page can claim two gigabytes, so the footer's sizes are judged before anything is
decoded. But pyarrow ends the whole process when asked for the metadata of a column that is encrypted or damaged, and
raises only when it decodes it; so the sizes of whole row groups come first, then one row, then the sizes of columns.

Limits (all far beyond what writers produce):

    a column chunk whose values would average over 256 MiB                      refused
    a column chunk over 1 GiB that is over 50,000 times its compressed size     refused (no codec of text reaches that)
    a row group over either limit, taken over its columns and the whole file    refused

Batches are sized from the footer, so that wide or long rows come in small batches. A dictionary page holds each value
once, so the footer tells little about the size of the decoded rows; its own size bounds a single value.

INT96 timestamps (older Spark, Hive, Impala) are read as nanoseconds, or in the finest unit that holds all of a file's
dates without losing digits: a date beyond 1677..2262 never wraps around.
"""

import contextlib
import io
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ticket_etl.errors import InputError
from ticket_etl.tickets.files import READ_BYTES, Part, one_line

MAX_VALUE_BYTES = 256 << 20
BOMB_BYTES, BOMB_RATIO = 1 << 30, 50_000
BATCH_ROWS = 4096
VIEW_BATCH_ROWS = (
    1024  # where views are nested: pyarrow writes that many rows at a time, and cannot slice such a column
)
BATCH_BYTES = 8 << 20  # of a batch, judged by the average row
PROBE_BYTES = 32 << 20  # of the first batch, if every row held the largest value that its dictionaries can hold
WORST_BATCH_BYTES = 512 << 20  # of the others, likewise
SIGNATURE_BYTES = 28  # after the footer of an encrypted file with a readable footer

_ERRORS = (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError, IndexError, TypeError, KeyError)


@contextlib.contextmanager
def decoding(part: Part, where: str = "") -> Iterator[None]:
    """Turn whatever pyarrow raises inside the block into an InputError that names the file and the place."""
    try:
        yield
    except _ERRORS as error:
        raise InputError(
            f"{part.name}{where}: damaged Parquet data ({one_line(error)}); write the file again"
        ) from error


@contextlib.contextmanager
def open_parquet(part: Part, int96_unit: str | None = None) -> Iterator[pq.ParquetFile]:
    """Yield the file, its magic bytes and footer checked; nothing is decoded yet."""
    with part.open() as file:
        footer_bytes = _check_magic(part, file)
        with decoding(part):
            parquet = pq.ParquetFile(
                file, pre_buffer=False, buffer_size=READ_BYTES, coerce_int96_timestamp_unit=int96_unit
            )
            signed = footer_bytes - parquet.metadata.serialized_size == SIGNATURE_BYTES
        if signed:
            raise InputError(f"{part.name}: is encrypted; decrypt it first")
        yield parquet


def _check_magic(part: Part, file: io.BufferedReader) -> int:
    """Check both ends of the file; give the length of the footer."""
    if part.size == 0:
        raise InputError(f"{part.name}: is empty (0 bytes), probably an export that failed; write it again")
    head = file.read(4)
    file.seek(max(part.size - 8, 0))
    tail = file.read(8)
    file.seek(0)
    if head == b"PARE" or tail[-4:] == b"PARE":
        raise InputError(f"{part.name}: is encrypted; decrypt it first")
    if head != b"PAR1":
        raise InputError(
            f"{part.name}: is not a Parquet file; check what wrote it, or give it the suffix of its format"
        )
    if part.size < 12 or tail[-4:] != b"PAR1":
        raise InputError(f"{part.name}: is truncated (no Parquet footer at its end); copy or write it again")
    return int.from_bytes(tail[:4], "little")


def check_sizes(part: Part, parquet: pq.ParquetFile) -> None:
    """Refuse what would fill the memory, from what the footer says; the metadata of columns comes last (see above)."""
    metadata = parquet.metadata
    for group in range(metadata.num_row_groups):
        info = metadata.row_group(group)
        widest = MAX_VALUE_BYTES * max(metadata.num_columns, 1) * max(info.num_rows, 1)
        if info.total_byte_size > min(widest, BOMB_RATIO * part.size) and info.total_byte_size > BOMB_BYTES:
            raise _bomb(part, f"row group {group}", part.size, info.total_byte_size)
        with decoding(part, f", row group {group}"):
            next(_iterate(parquet, group, None, 1), None)  # raises on metadata that would end the process below
        for leaf in range(metadata.num_columns):
            chunk = info.column(leaf)
            raw, stored = chunk.total_uncompressed_size, max(chunk.total_compressed_size, 1)
            if raw < 0 or chunk.num_values < 0 or info.num_rows < 0:
                raise InputError(
                    f"{part.name}, row group {group}: damaged Parquet data (negative sizes); write the file again"
                )
            if raw // max(chunk.num_values, 1) > MAX_VALUE_BYTES or (raw > BOMB_BYTES and raw // stored > BOMB_RATIO):
                raise _bomb(part, f"column '{chunk.path_in_schema}' of row group {group}", stored, raw)


def _bomb(part: Part, what: str, stored: int, raw: int) -> InputError:
    return InputError(f"{part.name}: {what} unpacks {stored:,} bytes to {raw:,}, more than is read; remove it")


def group_batches(parquet: pq.ParquetFile, group: int, leaves: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
    """Give one row group in small batches; `leaves` are indices of leaf columns, never names.

    A first batch is sized for the worst; what its rows take up decides the size of all, which are then read from the
    start of the row group, because pyarrow cannot change the size on the way (nor write a sliced struct of views).
    """
    most = VIEW_BATCH_ROWS if any(_nested_view(kind) for kind in parquet.schema_arrow.types) else BATCH_ROWS
    average, largest = _row_sizes(parquet, group, leaves)
    probe = next(_iterate(parquet, group, leaves, _fitting_rows(average, largest, PROBE_BYTES, most)), None)
    if probe is None:
        return
    if probe.num_rows >= parquet.metadata.row_group(group).num_rows:
        yield probe
        return
    average = max(average, probe.nbytes // max(probe.num_rows, 1))
    del probe
    yield from _iterate(parquet, group, leaves, _fitting_rows(average, largest, WORST_BATCH_BYTES, most))


def _iterate(parquet: pq.ParquetFile, group: int, leaves: Sequence[int] | None, rows: int) -> Iterator[pa.RecordBatch]:
    return parquet.reader.iter_batches(rows, row_groups=[group], column_indices=leaves, use_threads=False)


def _nested_view(kind: pa.DataType, inside: bool = False) -> bool:
    """Say whether a type holds string or binary views below its top level."""
    view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return (inside and view) or any(_nested_view(kind.field(i).type, True) for i in range(kind.num_fields))


def _fitting_rows(average: int, largest: int, worst_bytes: int, most: int) -> int:
    return max(1, min(most, BATCH_BYTES // (average + 1), worst_bytes // (largest + 1)))


def _row_sizes(parquet: pq.ParquetFile, group: int, leaves: Sequence[int] | None) -> tuple[int, int]:
    """Give the bytes of an average row, and of the largest value that a dictionary page may hold, from the footer."""
    info = parquet.metadata.row_group(group)
    raw = largest = 0
    for leaf in range(parquet.metadata.num_columns) if leaves is None else leaves:
        chunk = info.column(leaf)
        raw += chunk.total_uncompressed_size
        if chunk.has_dictionary_page and chunk.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
            stored = max(chunk.data_page_offset - (chunk.dictionary_page_offset or 0), 1)
            ratio = max(chunk.total_uncompressed_size // max(chunk.total_compressed_size, 1), 1)
            largest = max(largest, min(chunk.total_uncompressed_size, 2 * stored * ratio))
    return raw // max(info.num_rows, 1), largest


def leaves_of(parquet: pq.ParquetFile, columns: Sequence[int]) -> list[int] | None:
    """Give the leaf indices of top-level columns; None (read all) if types and leaves do not add up.

    Counted by type, not by dotted path: a column named "a.b" has the path of a child "b" of a struct "a".
    """
    counts = [_num_leaves(field.type) for field in parquet.schema_arrow]
    if sum(counts) != parquet.metadata.num_columns:
        return None
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return [leaf for column in sorted(columns) for leaf in range(starts[column], starts[column + 1])]


def _num_leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _num_leaves(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _num_leaves(kind.value_type)
    return sum(_num_leaves(kind.field(i).type) for i in range(kind.num_fields)) or 1


def int96_unit(part: Part) -> str | None:
    """Give the unit to read INT96 timestamps in: None if there are none or nanoseconds hold them all."""
    with open_parquet(part) as parquet, decoding(part):
        schema = parquet.metadata.schema
        leaves = [i for i in range(len(schema)) if schema.column(i).physical_type == "INT96"]
        names = {schema.column(i).path for i in leaves}
    if not leaves:
        return None
    for unit, exponent in (("ns", 9), ("us", 6), ("ms", 3)):
        if _holds_all(part, leaves, unit, (2**63 - 1) // 10**exponent - 1):
            return None if unit == "ns" else unit
    raise InputError(
        f"{part.name}: INT96 timestamps in {', '.join(sorted(names))} reach beyond the years of their digits; "
        "write them as INT64 timestamps"
    )


def _holds_all(part: Part, leaves: list[int], unit: str, max_seconds: int) -> bool:
    """Say whether every timestamp fits the unit, and has no digits below it."""
    for fine, coarse, finest in zip(*(_int96_values(part, leaves, u) for u in (unit, "s", "ns")), strict=True):
        if pc.any(pc.greater(pc.abs(coarse), max_seconds)).as_py():
            return False
        factor = {"ns": 1, "us": 10**3, "ms": 10**6}[unit]
        # Modulo 2**64 on purpose: wrapped nanoseconds still differ from the others by exactly the lost digits.
        if pc.any(pc.not_equal(finest, pc.multiply(fine, factor))).as_py():
            return False
    return True


def _int96_values(part: Part, leaves: list[int], unit: str) -> Iterator[pa.Array]:
    with open_parquet(part, unit) as parquet, decoding(part):
        for group in range(parquet.metadata.num_row_groups):
            for batch in group_batches(parquet, group, leaves):
                for column in batch.columns:
                    yield from _timestamps(column)


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_timestamp(array.type):
        yield array.cast(pa.int64())
    elif pa.types.is_map(array.type):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _timestamps(child)
    else:
        yield from _timestamps(array.flatten())
