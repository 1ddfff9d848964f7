"""The report as one self-contained page: the summary, the figures as tables, and plots drawn by matplotlib as SVG.

The page holds no script and loads nothing, so it can be mailed or archived as it is. Needs the extra `report`.
"""

import html
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ticket_etl.report import RunReport

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd }
th { text-align: left; font-weight: 600 } td { text-align: right } svg { max-width: 100%; height: auto }
"""
_BAR_COLOUR = "#3b6ea5"
_TABLES = ("rows", "seconds", "throughput", "tokens", "padding_fraction", "certification", "drift", "model", "machine")


def render_page(report: RunReport) -> str:
    """The page as HTML text."""
    padding = {name: 100 * share for name, share in report.padding_fraction.items()}
    plots = (
        ("Labels", bars(list(report.labels), list(report.labels.values()), "tickets")),
        ("Padding by strategy", bars(list(padding), list(padding.values()), "% of computed tokens")),
        ("Scores", histogram(report.score_histogram, "probability of the label")),
        ("Margins", histogram(report.margin_histogram, "log-odds to the runner-up")),
    )
    parts = [f"<pre>{html.escape(str(report))}</pre>"]
    parts += [f"<h2>{title}</h2>\n{svg}" for title, svg in plots]
    parts += [
        f"<h2>{name.replace('_', ' ').capitalize()}</h2>\n{table(getattr(report, name) or {})}" for name in _TABLES
    ]
    title = html.escape(f"ticket-etl: {report.input}, {report.finished}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style></head>\n"
        f"<body>\n<h1>{title}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def bars(names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """A bar for each name, the first on top, as SVG."""
    figure = Figure(figsize=(8, 0.6 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    drawn = axes.barh([name.replace("$", r"\$") for name in names], values, color=_BAR_COLOUR)
    axes.bar_label(drawn, fmt="{:,.4g}", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.margins(x=0.12)
    return _svg(figure)


def histogram(bins: Sequence[Mapping[str, Any]], unit: str) -> str:
    """A column for each bin, as SVG."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    names = [
        f"{each['from']:g} to {each['to']:g}" if each["to"] is not None else f"over {each['from']:g}" for each in bins
    ]
    drawn = axes.bar(names, [each["count"] for each in bins], color=_BAR_COLOUR)
    axes.bar_label(drawn, fmt="{:,.0f}")
    axes.set_xlabel(unit)
    axes.set_ylabel("tickets")
    axes.tick_params(axis="x", labelrotation=30)
    return _svg(figure)


def table(values: Mapping[str, Any], prefix: str = "") -> str:
    """Names and values, nested ones with dotted names, as an HTML table."""
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(_show(value))}</td></tr>"
        for name, value in _flat(values, prefix)
    )
    return f"<table>{rows}</table>"


def _flat(values: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        pairs += _flat(value, f"{prefix}{name}.") if nested else [(f"{prefix}{name}", value)]
    return pairs


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _svg(figure: Figure) -> str:
    """The figure as an SVG element, text as text, without dates or random ids: equal reports are equal bytes."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ticket-etl"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that its own font has not: the reader's font counts
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
