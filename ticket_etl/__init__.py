"""ticket-etl: label support tickets with a small language model, in padding-free batches, exactly.

Importing the package is cheap: it loads neither torch nor transformers. The way of a ticket through the code is
`pipeline.run`: read, encode, plan, score, restore order, journal, write, report.
"""

from importlib.metadata import PackageNotFoundError, version

from ticket_etl.errors import TicketEtlError
from ticket_etl.labels import Label, LabelSet
from ticket_etl.plan import Batch
from ticket_etl.strategies import STRATEGIES, Strategy

try:
    __version__ = version("ticket-etl")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["STRATEGIES", "Batch", "Label", "LabelSet", "Strategy", "TicketEtlError", "__version__"]
