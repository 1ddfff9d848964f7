"""Open an input of any format, refusing everything that can be refused before a model is loaded."""

from collections.abc import Sequence

from ticket_etl.errors import UsageError
from ticket_etl.tickets.base import Tickets
from ticket_etl.tickets.files import PARQUET, find_parts
from ticket_etl.tickets.jsonl import JsonlTickets
from ticket_etl.tickets.parquet import ParquetTickets

BAD_RECORDS = ("stop", "quarantine")


def open_tickets(
    path: str,
    *,
    text_columns: Sequence[str] = (),
    bad_records: str = "stop",
) -> Tickets:
    """Open IN: a Parquet or JSONL file, a folder of parts, or `-` for JSONL on standard input.

    The whole input is read once: what is damaged, encrypted or hostile is refused here, with one line. With
    `bad_records="quarantine"` bad JSONL lines are counted and kept out, for `write_rejects` to write.

    Raises:
        InputError: it cannot be read, or is no such file.
        UsageError: there is no text column of these names, or none that can be told from the others.
    """
    if bad_records not in BAD_RECORDS:
        raise UsageError(f"--bad-records {bad_records}: must be {' or '.join(BAD_RECORDS)}")
    kind, parts = find_parts(path)
    name = parts[0].name if path == "-" else path
    folder = path if len(parts) > 1 or parts[0].path not in (path, None) else None
    try:
        if kind == PARQUET:
            return ParquetTickets(name, parts, folder, text_columns)
        return JsonlTickets(name, parts, folder, text_columns, bad_records)
    except BaseException:
        for part in parts:
            part.close()
        raise
