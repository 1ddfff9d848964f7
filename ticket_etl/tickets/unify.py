"""One schema for the parts of a data set whose schemas differ.

Columns are matched by name and keep the order of the first part that has them. A column that a part lacks is null there
(and then nullable everywhere). Types that differ are widened where no value can change:

    null with T                                   T
    integers of one signedness                    the wider
    unsigned with a wider signed integer          the signed
    float16, float32, float64                     the wider
    string, large_string, string_view             large_string
    binary, large_binary, binary_view             large_binary

Anything else, integers with floats included, is refused by file and column. Table and field metadata are those of the
first part that has the key.
"""

from collections.abc import Sequence

import pyarrow as pa

from ticket_etl.errors import InputError

types = pa.types


def unify_schemas(schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
    """Give the widened schema of all parts; `names` are the parts' names for messages."""
    first = schemas[0]
    if all(schema.equals(first, check_metadata=True) for schema in schemas):
        return first
    fields: dict[str, pa.Field] = {}
    metadata: dict[bytes, bytes] = {}
    for schema, name in zip(schemas, names, strict=True):
        if len(set(schema.names)) < len(schema.names):
            raise InputError(f"{name}: has two columns of one name while the parts' schemas differ; rename one")
        metadata = {**(schema.metadata or {}), **metadata}
        for field in schema:
            known = fields.get(field.name)
            fields[field.name] = field if known is None else _unify_fields(known, field, name)
    everywhere = set(first.names).intersection(*(set(schema.names) for schema in schemas))
    return pa.schema([f if f.name in everywhere else f.with_nullable(True) for f in fields.values()], metadata or None)


def _unify_fields(known: pa.Field, field: pa.Field, name: str) -> pa.Field:
    kind = widen(known.type, field.type)
    if kind is None:
        raise InputError(
            f"{name}: column '{field.name}' has type {field.type} here and {known.type} in an earlier part; "
            "write the parts with one schema"
        )
    merged = {**(field.metadata or {}), **(known.metadata or {})}
    return pa.field(field.name, kind, known.nullable or field.nullable, merged or None)


def widen(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Give the type that holds every value of both unchanged: (int32, int64) -> int64; None if there is none here."""
    if a.equals(b) or types.is_null(b):
        return a
    if types.is_null(a):
        return b
    if types.is_integer(a) and types.is_integer(b):
        return _widen_integers(a, b)
    if types.is_floating(a) and types.is_floating(b):
        return a if a.bit_width > b.bit_width else b
    for wide, narrow in (
        (pa.large_string(), (pa.string(), pa.string_view())),
        (pa.large_binary(), (pa.binary(), pa.binary_view())),
    ):
        if {a, b} <= {wide, *narrow}:
            return wide
    return None


def _widen_integers(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    wide, narrow = (a, b) if a.bit_width >= b.bit_width else (b, a)
    same_sign = types.is_signed_integer(a) == types.is_signed_integer(b)
    if same_sign or (types.is_signed_integer(wide) and wide.bit_width > narrow.bit_width):
        return wide
    return None


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give the batch the data set's schema: widen its columns, add those it lacks."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        columns.append(pa.nulls(batch.num_rows, field.type) if at < 0 else _cast(batch.column(at), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast without touching the bytes: strings go through binary, so invalid UTF-8 passes unseen and unchanged."""
    if array.type.equals(kind):
        return array
    if kind.equals(pa.large_string()):
        plain = pa.binary_view() if types.is_string_view(array.type) else pa.binary()
        return array.cast(plain).cast(pa.large_binary()).view(pa.large_string())
    return array.cast(kind)
