"""Tickets in, labelled tickets out, nothing lost: Parquet, JSON Lines, and the files they live in.

`open_tickets` checks an input in full, `check_output` an output, `write_labelled` streams the one into the other with
the labels beside it. Nothing here knows about models.
"""

from ticket_etl.tickets.base import Tickets
from ticket_etl.tickets.output import check_output, write_labelled
from ticket_etl.tickets.source import open_tickets

__all__ = ["Tickets", "check_output", "open_tickets", "write_labelled"]
