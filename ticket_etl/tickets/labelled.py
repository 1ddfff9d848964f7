"""The output columns as they arrive: batches of any size, taken by the row count of the input's batches."""

from collections.abc import Iterator

import pyarrow as pa

from ticket_etl.errors import OutputError


class ForeignError(Exception):
    """An operating-system error of whoever computes the labels, kept apart from those of writing OUT."""

    def __init__(self, original: OSError) -> None:
        super().__init__(str(original))
        self.original = original


class LabelledRows:
    """Joins by position only: the n-th row taken is the n-th row that came."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema | None) -> None:
        self._batches = batches
        self._held = self._next()
        known = schema if schema is not None else self._held and self._held.schema
        if known is None:
            raise ValueError("no output columns: give output_columns, or at least one batch, which may be empty")
        self.schema: pa.Schema = known

    def _next(self) -> pa.RecordBatch | None:
        try:
            return next(self._batches, None)
        except OSError as error:
            raise ForeignError(error) from error

    def take(self, num_rows: int) -> pa.Table:
        """Give the next rows."""
        pieces, missing = [], num_rows
        while missing:
            if self._held is None:
                raise OutputError(
                    f"labels ended {missing} rows early; nothing was written; this is a fault of the program"
                )
            piece = self._held.slice(0, missing)
            missing -= piece.num_rows
            pieces.append(piece)
            self._held = self._held.slice(piece.num_rows) if piece.num_rows < self._held.num_rows else self._next()
        return pa.Table.from_batches(pieces, schema=self.schema)

    def finish(self) -> None:
        """Check that no row is left over."""
        while self._held is not None:
            if self._held.num_rows:
                raise OutputError(
                    "there are more labels than tickets; nothing was written; this is a fault of the program"
                )
            self._held = self._next()
