"""OUT: every check before the work, then one streaming pass that writes the input and its labels.

Parquet to Parquet    lossless; codec of each column and row groups kept; a row group that would take over 128 MiB in
                      memory is split
JSONL to Parquet      columns by the rules of `jsonl_schema`, zstd, row groups of 65,536 rows or 128 MiB
JSONL to JSONL        each record's bytes as they were, the new keys inserted before its closing brace
Parquet to JSONL      values by the rules of `render`
"""

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import OutputError, UsageError
from ticket_etl.tickets.base import Tickets
from ticket_etl.tickets.files import PARQUET, SUFFIXES, format_of, one_line
from ticket_etl.tickets.jsonl import JsonlTickets
from ticket_etl.tickets.labelled import ForeignError, LabelledRows
from ticket_etl.tickets.output_jsonl import check_jsonl, prove_jsonl, write_jsonl
from ticket_etl.tickets.output_parquet import check_parquet, output_schema, prove_parquet, write_parquet


def check_output(
    tickets: Tickets,
    out: Path,
    *,
    output_columns: pa.Schema,
    replace_columns: bool = False,
    clobber: bool = True,
) -> None:
    """Refuse, before any work, an OUT that cannot or must not be written.

    Raises:
        UsageError: its suffix, its place in the input, or the names of its columns.
        OutputError: it cannot be written there, or not in this format.
    """
    kind, _ = _format(out)
    _check_place(tickets, out, clobber)
    _check_names(tickets, output_columns, replace_columns)
    if kind == PARQUET:
        if isinstance(tickets, JsonlTickets) and tickets.parquet_problem:
            raise OutputError(f"{out}: the records have {tickets.parquet_problem}; write JSONL")
        prove_parquet(tickets, output_columns, out)
    else:
        prove_jsonl(tickets, output_columns, out)


def write_labelled(
    tickets: Tickets,
    out: Path,
    labelled: Iterator[pa.RecordBatch],
    *,
    replace_columns: bool = False,
    output_columns: pa.Schema | None = None,
) -> None:
    """Write the input's rows with the output columns that `labelled` gives for them, in order, and replace OUT.

    `output_columns` is only needed where an input without rows may come with no batch at all.

    Raises:
        OutputError: OUT cannot be written, or does not read back as it was written; the old one is untouched.
    """
    kind, compression = _format(out)
    try:
        labels = LabelledRows(iter(labelled), output_columns)
        _check_names(tickets, labels.schema, replace_columns)
        schema = output_schema(tickets, labels.schema)

        def read_back(path: Path) -> None:
            try:
                if kind == PARQUET:
                    check_parquet(path, tickets.num_rows, schema)
                else:
                    check_jsonl(path, tickets.num_rows, compression)
            except (pa.ArrowException, EOFError, ValueError, zlib.error) as error:
                raise OutputError(f"{out}: cannot be read back ({one_line(error)}); check the disk") from error

        with replace_atomically(out, check=read_back) as file:
            try:
                if kind == PARQUET:
                    write_parquet(tickets, file, labels)
                else:
                    write_jsonl(tickets, file, labels, compression)
            except (pa.ArrowException, zlib.error) as error:
                if isinstance(error, OSError):
                    raise
                raise OutputError(
                    f"{out}: cannot be written ({one_line(error)}); what was there before is unchanged"
                ) from error
            labels.finish()
    except ForeignError as error:
        raise error.original from error


def _format(out: Path) -> tuple[str, str]:
    kind = format_of(out.name)
    if kind is None:
        raise UsageError(f"{out}: unknown kind of output; its name must end in one of {', '.join(SUFFIXES)}")
    return kind


def _check_names(tickets: Tickets, output_columns: pa.Schema, replace_columns: bool) -> None:
    taken = [name for name in output_columns.names if name in tickets.schema.names]
    if taken and not replace_columns:
        raise UsageError(
            f"{tickets.name}: already has {'columns' if len(taken) > 1 else 'a column'} named {', '.join(taken)}; "
            "rename the new ones with --output-prefix, or replace the old ones with --replace-columns"
        )


def _check_place(tickets: Tickets, out: Path, clobber: bool) -> None:
    try:
        target = Path(os.path.realpath(out))
        if target.is_symlink():
            raise OutputError(f"{out}: is a symbolic link that leads back to itself; remove it")
        if target.exists():
            _check_existing(tickets, out, target, clobber)
        if not target.parent.is_dir():
            raise OutputError(f"{out}: its folder {target.parent} does not exist; create it")
        if (
            tickets.folder is not None
            and target.parent.samefile(tickets.folder)
            and not target.name.startswith(("_", "."))
        ):
            raise UsageError(
                f"{out}: lies in the input folder, and would be a part of the next run's input; choose another"
            )
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        reason = error.strerror or one_line(error)
        raise OutputError(f"{out}: cannot be written ({reason}); check its folder and permissions") from error


def _check_existing(tickets: Tickets, out: Path, target: Path, clobber: bool) -> None:
    status = target.stat()
    if any((status.st_dev, status.st_ino) == part.signature[2:] for part in tickets.parts):
        raise UsageError(f"{out}: is the input itself; choose another output")
    if not stat.S_ISREG(status.st_mode):
        raise OutputError(f"{out}: exists and is not a regular file; choose another output")
    if not clobber:
        raise OutputError(f"{out}: exists already; remove it, or run without --no-clobber")
