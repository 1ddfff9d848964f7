"""The distinct tickets of an input, encoded and held in memory: for commands that compare, not for the nightly job."""

from collections.abc import Sequence
from dataclasses import dataclass

from ticket_etl.config import ScoringConfig
from ticket_etl.errors import InputError
from ticket_etl.labeller import is_blank
from ticket_etl.prompt import EncodedTicket, TicketEncoder
from ticket_etl.sampling import stratified_sample
from ticket_etl.tickets import Tickets, open_tickets


@dataclass(frozen=True)
class Workload:
    """Distinct tickets with the row each first stands in (0 is the first row of IN)."""

    rows: list[int]
    texts: list[str]
    num_rows: int

    def encode(self, encoder: TicketEncoder) -> list[EncodedTicket]:
        """The tickets' token ids."""
        return encoder.encode(self.texts)

    def sample(self, encoded: Sequence[EncodedTicket], count: int | None, seed: int) -> list[int]:
        """Indices of a seeded sample over all lengths, or of all tickets."""
        wanted = len(encoded) if count is None else count
        return stratified_sample([len(ticket.ids) for ticket in encoded], wanted, seed)


def open_workload_input(config: ScoringConfig) -> Tickets:
    """Open the input of a command that writes no output."""
    return open_tickets(config.input, text_columns=config.text_columns, bad_records=config.bad_records)


def read_workload(config: ScoringConfig) -> Workload:
    """Read the distinct texts of the input.

    Raises:
        InputError: there is no text in it.
    """
    first_row: dict[str, int] = {}
    row = 0
    with open_workload_input(config) as tickets:
        for batch in tickets.texts():
            for text in batch:
                if text is not None and not is_blank(text):
                    first_row.setdefault(text, row)
                row += 1
    if not first_row:
        raise InputError(f"{config.input} holds no text to label")
    return Workload(list(first_row.values()), list(first_row), row)
