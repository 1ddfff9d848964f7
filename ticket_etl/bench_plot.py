"""The comparison of `ticket-etl bench` as a drawing: a bar for each strategy and dtype. Needs the extra `report`."""

import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import OutputError, UsageError

if TYPE_CHECKING:
    from ticket_etl.bench import BenchTable

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Make sure, before anything is timed, that a plot can be drawn.

    Raises:
        UsageError: matplotlib is missing, or the suffix names no format.
        OutputError: there is no such folder.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'ticket-etl[report]'")
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path} must end in {', '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise OutputError(f"the folder of --plot {path} does not exist; create it")


def draw(table: "BenchTable", path: Path) -> None:
    """Draw tickets per second, the first contestant on top, a colour for each dtype."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2 + 0.3 * len(table.rows)), layout="constrained")
    axes = figure.subplots()
    names = [f"{row.strategy} ({row.precision})" for row in table.rows]
    for dtype in dict.fromkeys(row.dtype for row in table.rows):
        places = [place for place, row in enumerate(table.rows) if row.dtype == dtype]
        speeds = [table.rows[place].tickets_per_second for place in places]
        drawn = axes.barh(places, speeds, label=dtype)
        speedups = [f"{table.rows[place].speedup_vs_per_item:.2f}x" for place in places]
        axes.bar_label(drawn, labels=speedups, padding=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("tickets/s; at the bars, times the speed of per-item")
    axes.set_title(textwrap.fill(table.conditions, 120), fontsize="small", loc="left")
    axes.legend()
    with replace_atomically(path) as file, mpl.rc_context({"svg.hashsalt": "ticket-etl"}):
        figure.savefig(file, format=path.suffix.lower().removeprefix("."))
