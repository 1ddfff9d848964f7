"""Arrow values as JSON values, exactly: the rendering of a Parquet column in a JSONL output.

    null, booleans, integers of any size    as they are
    floats                                  the shortest number that reads back as the same value of the column's width;
                                            "NaN", "Infinity" and "-Infinity" as strings, since JSON has no such numbers
    decimals                                strings with all their digits: "12.340"
    strings, JSON columns                   strings; one whose stored bytes are not UTF-8: {"base64": "..."}
    binary                                  base64 strings
    dates, times, timestamps                ISO 8601 strings with the column's digits; in UTC with "Z" if it has a zone
      a year beyond 32767                   the stored integer
    durations                               integers, in the column's unit
    UUIDs                                   strings in the usual form
    lists                                   arrays
    structs                                 objects (refused if two children have one name)
    maps                                    arrays of {"key": ..., "value": ...}, since keys may repeat or be no strings
    dictionaries, other extension types     as their values, as their storage

A type with no rendering is refused by the name of its column, before any scoring.
"""

import base64
import json
import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Json = Any
types = pa.types
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_text(value: Json) -> str:
    """Write a JSON value in its compact form: {"a": [1, 2]} -> '{"a":[1,2]}'."""
    return _ENCODER.encode(value)


def unrenderable(kind: pa.DataType) -> str | None:
    """Say why values of this type have no rendering; None if they have one."""
    if isinstance(kind, pa.BaseExtensionType):
        return unrenderable(kind.storage_type)
    if types.is_dictionary(kind):
        return unrenderable(kind.value_type)
    if types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            return "a struct with two children of one name"
        return next((why for field in kind if (why := unrenderable(field.type))), None)
    if types.is_map(kind):
        return unrenderable(kind.key_type) or unrenderable(kind.item_type)
    if _is_list(kind):
        return unrenderable(kind.value_type)
    return None if any(test(kind) for test, _ in _LEAVES) else f"type {kind}"


def render(array: pa.Array) -> list[Json]:
    """Give the array's values as JSON values."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _uuids(array) if kind.extension_name == "arrow.uuid" else render(array.storage)
    if types.is_dictionary(kind):
        values = render(array.dictionary)
        return [None if i is None else values[i] for i in array.indices.to_pylist()]
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    if _is_list(kind):
        return _lists(array)
    return next(write for test, write in _LEAVES if test(kind))(array)


def _is_list(kind: pa.DataType) -> bool:
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _structs(array: pa.StructArray) -> list[Json]:
    names = [field.name for field in array.type]
    columns = [render(array.field(i)) for i in range(len(names))]
    rows: Iterator[tuple[Json, ...]] = zip(*columns, strict=True) if columns else iter([()] * len(array))
    return [
        dict(zip(names, row, strict=True)) if valid else None for row, valid in zip(rows, _valid(array), strict=True)
    ]


def _maps(array: pa.MapArray) -> list[Json]:
    offsets = array.offsets.to_pylist()
    first, last = offsets[0] if offsets else 0, offsets[-1] if offsets else 0
    keys, items = render(array.keys.slice(first, last - first)), render(array.items.slice(first, last - first))
    pairs = [{"key": key, "value": item} for key, item in zip(keys, items, strict=True)]
    return _cut(pairs, [o - first for o in offsets], _valid(array))


def _lists(array: pa.Array) -> list[Json]:
    """Render the flat values once, and cut them at the lists' lengths (null lists have no values in `flatten`)."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
    values = render(array.flatten())
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return _cut(values, offsets, _valid(array))


def _cut(values: list[Json], offsets: list[int], valid: list[bool]) -> list[Json]:
    return [values[offsets[i] : offsets[i + 1]] if ok else None for i, ok in enumerate(valid)]


def _valid(array: pa.Array) -> list[bool]:
    return array.is_valid().to_pylist()


def _plain(array: pa.Array) -> list[Json]:
    return array.to_pylist()


def _floats(array: pa.Array) -> list[Json]:
    if types.is_float64(array.type):
        return [_finite(value) for value in array.to_pylist()]
    shortest = pc.cast(array, pa.float32()).cast(pa.string()).to_pylist()
    return [None if text is None else _finite(float(text)) for text in shortest]


def _finite(value: float | None) -> Json:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimals(array: pa.Array) -> list[Json]:
    return [None if value is None else format(value, "f") for value in array.to_pylist()]


def _strings(array: pa.Array) -> list[Json]:
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        return [_string(data) for data in as_bytes(array)]


def _string(data: bytes | None) -> Json:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": _base64(data or b"")}


def as_bytes(array: pa.Array) -> list[bytes | None]:
    """Give the stored bytes of a string or binary array, never decoding them."""
    if types.is_string_view(array.type):
        return array.cast(pa.binary_view()).to_pylist()
    large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    return array.cast(pa.large_binary() if large else pa.binary()).to_pylist()


def _binaries(array: pa.Array) -> list[Json]:
    return [None if value is None else _base64(value) for value in array.to_pylist()]


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _uuids(array: pa.Array) -> list[Json]:
    return [None if value is None else str(uuid.UUID(bytes=value)) for value in array.storage.to_pylist()]


def _durations(array: pa.Array) -> list[Json]:
    return array.cast(pa.int64()).to_pylist()


def _clock(array: pa.Array) -> list[Json]:
    return _spelled(array, array, "")


def _timestamps(array: pa.Array) -> list[Json]:
    return _spelled(array, array.cast(pa.timestamp(array.type.unit)), "" if array.type.tz is None else "Z")


def _spelled(array: pa.Array, plain: pa.Array, zone: str) -> list[Json]:
    """Spell out dates and times; years that Arrow cannot spell are given as the stored integers instead."""
    texts = plain.cast(pa.string()).to_pylist()
    if any(text is not None and text.startswith("<") for text in texts):
        stored = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
        texts = [number if text and text.startswith("<") else text for text, number in zip(texts, stored, strict=True)]
    return [text.replace(" ", "T") + zone if isinstance(text, str) else text for text in texts]


_LEAVES: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Json]]]] = [
    (types.is_null, _plain),
    (types.is_boolean, _plain),
    (types.is_integer, _plain),
    (types.is_floating, _floats),
    (types.is_decimal, _decimals),
    (lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t), _strings),
    (lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t), _binaries),
    (types.is_fixed_size_binary, _binaries),
    (lambda t: types.is_date(t) or types.is_time(t), _clock),
    (types.is_timestamp, _timestamps),
    (types.is_duration, _durations),
]
