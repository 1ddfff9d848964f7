"""The Arrow schema of JSON records, from all of them and never from the first few.

    only null, or key absent          null type (null and absent are the same once in a column)
    booleans                          bool
    integers                          int64, else uint64, else decimal128(38, 0), else JSON text
    numbers with a fraction or        float64, if every integer among them is exactly a double; else JSON text
      an exponent among them
    strings                           string, whatever they look like: "007" and "2024-01-05" stay as they are
    arrays                            list, of one type by these same rules
    objects                           struct, with every key that occurs
    objects that are all {}           JSON text: Parquet cannot store a struct without fields
    several of these kinds            string: strings as they are, other values as their JSON text
    deeper than 16 levels             JSON text
    more than 256 keys in one kind    JSON text (a map in disguise)
      of nested object
    more than 10,000 keys in all      every nested column as JSON text

JSON text is compact, keeps the order of keys, and gives each number as the shortest that reads back the same.
Integers are never turned into floats that differ from them. At the top level up to 5,000 keys can become columns.
"""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa

from ticket_etl.tickets.render import json_text

MAX_DEPTH = 16
MAX_NESTED_KEYS = 256
MAX_KEYS = 10_000
MAX_COLUMNS = 5_000
EXACT_DOUBLE = 1 << 53
Converter = Callable[[Any], Any]


class Kind:
    """What the values at one place of the records have been so far."""

    __slots__ = ("as_text", "boolean", "depth", "fields", "floats", "fractional", "high", "items", "low", "string")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.boolean = self.string = self.fractional = self.as_text = False
        self.floats = True  # every integer so far is exactly a double
        self.low: int | None = None
        self.high: int | None = None
        self.fields: dict[str, Kind] | None = None
        self.items: Kind | None = None

    def observe(self, values: Sequence[Any]) -> None:
        """Take note of some more values."""
        for kind in set(map(type, values)):
            if kind is str:
                self.string = True
            elif kind is bool:
                self.boolean = True
            elif kind is float:
                self.fractional = True
            elif kind is int:
                self._observe_integers([v for v in values if type(v) is int])
            elif kind is list:
                self._observe_lists([v for v in values if type(v) is list])
            elif kind is dict:
                self._observe_objects([v for v in values if type(v) is dict])

    def _observe_integers(self, values: list[int]) -> None:
        low, high = min(values), max(values)
        self.low = low if self.low is None else min(low, self.low)
        self.high = high if self.high is None else max(high, self.high)
        if self.floats and not (low >= -EXACT_DOUBLE and high <= EXACT_DOUBLE):
            self.floats = all(map(_is_double, values))

    def _observe_lists(self, values: list[list[Any]]) -> None:
        if self.items is None:
            self.items = Kind(self.depth + 1)
        if self.depth >= MAX_DEPTH:
            self.as_text = True
        if not self.as_text:
            self.items.observe(list(chain.from_iterable(values)))

    def _observe_objects(self, values: list[dict[str, Any]]) -> None:
        if self.fields is None:
            self.fields = {}
        if self.depth >= MAX_DEPTH:
            self.as_text = True
        if self.as_text:
            return
        observe_fields(self.fields, values, self.depth + 1)
        if len(self.fields) > MAX_NESTED_KEYS:
            self.keep_as_text()

    def keep_as_text(self) -> None:
        """Give up on the inner structure."""
        self.as_text = True
        self.fields = None if self.fields is None else {}
        self.items = None if self.items is None else Kind(self.depth + 1)

    def num_keys(self) -> int:
        """Count the keys below."""
        below = [*(self.fields or {}).values(), *([self.items] if self.items else [])]
        return len(self.fields or {}) + sum(kind.num_keys() for kind in below)

    def resolve(self) -> tuple[pa.DataType, Converter | None]:
        """Give the Arrow type, and what turns a value into what pyarrow takes for it (None: nothing to do)."""
        numeric = self.low is not None or self.fractional
        kinds = self.boolean + self.string + numeric + (self.items is not None) + (self.fields is not None)
        if kinds == 0:
            return pa.null(), None
        if kinds > 1 or self.as_text:
            return pa.string(), _text
        if self.boolean:
            return pa.bool_(), None
        if self.string:
            return pa.string(), None
        if numeric:
            return self._resolve_number()
        return self._resolve_list() if self.items is not None else self._resolve_struct()

    def _resolve_number(self) -> tuple[pa.DataType, Converter | None]:
        if self.low is None or self.high is None:
            return pa.float64(), None
        if self.fractional:
            return (pa.float64(), _float) if self.floats else (pa.string(), _text)
        if self.low >= -(2**63) and self.high < 2**63:
            return pa.int64(), None
        if self.low >= 0 and self.high < 2**64:
            return pa.uint64(), None
        if self.low > -(10**38) and self.high < 10**38:
            return pa.decimal128(38, 0), _decimal
        return pa.string(), _text

    def _resolve_list(self) -> tuple[pa.DataType, Converter | None]:
        assert self.items is not None
        kind, convert = self.items.resolve()
        return pa.list_(pa.field("element", kind)), convert and _each(convert)

    def _resolve_struct(self) -> tuple[pa.DataType, Converter | None]:
        if not self.fields:
            return pa.string(), _text
        resolved = {key: kind.resolve() for key, kind in self.fields.items()}
        converters = {key: convert for key, (_, convert) in resolved.items() if convert}
        return pa.struct([pa.field(key, kind) for key, (kind, _) in resolved.items()]), _members(
            converters
        ) if converters else None


def observe_fields(
    fields: dict[str, Kind], values: Sequence[dict[str, Any]], depth: int, limit: int | None = None
) -> None:
    """Take note of the values of each key, keeping the order in which keys first occur."""
    for key in dict.fromkeys(chain.from_iterable(values)):
        if key not in fields:
            if limit is not None and len(fields) >= limit:
                continue
            fields[key] = Kind(depth)
        fields[key].observe([value[key] for value in values if key in value])


class SchemaOfRecords:
    """Collects the schema over all records, then turns batches of records into Arrow."""

    def __init__(self) -> None:
        self.fields: dict[str, Kind] = {}
        self.too_many_columns = False
        self._flat = False
        self._columns: list[tuple[str, Converter | None]] = []
        self.schema = pa.schema([])

    def observe(self, records: Sequence[dict[str, Any]]) -> None:
        """Take note of some more records."""
        observe_fields(self.fields, records, 1, MAX_COLUMNS + 1)
        if len(self.fields) > MAX_COLUMNS:
            self.too_many_columns = True
        if self._flat or sum(kind.num_keys() for kind in self.fields.values()) > MAX_KEYS:
            self._flat = True
            for kind in self.fields.values():
                if kind.fields is not None or kind.items is not None:
                    kind.keep_as_text()

    def finish(self) -> pa.Schema:
        """Settle the schema."""
        resolved = {key: kind.resolve() for key, kind in self.fields.items()}
        self._columns = [(key, convert) for key, (_, convert) in resolved.items()]
        self.schema = pa.schema([pa.field(key, kind) for key, (kind, _) in resolved.items()])
        return self.schema

    def to_arrow(self, records: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """Turn records into columns."""
        columns = []
        for (key, convert), field in zip(self._columns, self.schema, strict=True):
            values: Iterable[Any] = (record.get(key) for record in records)
            if convert:
                values = (None if v is None else convert(v) for v in values)
            columns.append(pa.array(list(values), type=field.type))
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(records), pa.struct([])))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _is_double(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _text(value: Any) -> str:
    return value if type(value) is str else json_text(value)


def _float(value: Any) -> float:
    return float(value)


def _decimal(value: int) -> Decimal:
    return Decimal(value)


def _each(convert: Converter) -> Converter:
    return lambda values: [None if v is None else convert(v) for v in values]


def _members(converters: dict[str, Converter]) -> Converter:
    def convert(value: dict[str, Any]) -> dict[str, Any]:
        return {k: converters[k](v) if v is not None and k in converters else v for k, v in value.items()}

    return convert
