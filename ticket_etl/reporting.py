"""From a finished run to its report: the figures gathered, and written beside OUT."""

import dataclasses
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ticket_etl import __version__, report
from ticket_etl.atomic import replace_atomically
from ticket_etl.config import JobConfig
from ticket_etl.errors import OutputError
from ticket_etl.machine import peak_memory_bytes, versions
from ticket_etl.process import readable
from ticket_etl.report import RunReport
from ticket_etl.tally import Tally

if TYPE_CHECKING:
    from ticket_etl.scoring import Scoring
    from ticket_etl.tickets import Tickets


def make_report(
    config: JobConfig,
    tickets: "Tickets",
    scoring: "Scoring",
    tally: Tally,
    fingerprint: dict[str, str],
    certification: dict[str, Any] | None,
    started: str,
    run_seconds: float,
) -> RunReport:
    """Gather a finished run's figures."""
    rows = report.row_counts(tally, tickets.num_quarantined)
    if rows["read"] != tickets.num_rows + tickets.num_quarantined:
        raise AssertionError(f"{rows['read']} rows accounted for, {tickets.num_rows + tickets.num_quarantined} read")
    seconds = {stage: round(spent, 4) for stage, spent in tally.seconds.items()} | {"run": round(run_seconds, 4)}
    scoring_seconds = tally.seconds.get("score", 0.0) or float("inf")
    score_histogram, margin_histogram = report.histograms(tally)
    settings = {key: value for key, value in dataclasses.asdict(config).items() if key not in ("input", "output")}
    return RunReport(
        version=__version__,
        started=started,
        finished=utc_now(),
        input=readable(config.input),
        output=readable(str(config.output)),
        rows=rows,
        labels=dict(zip(scoring.labels.names, tally.label_counts.tolist(), strict=True)),
        seconds=seconds,
        throughput={
            "scoring_tickets_per_second": tally.scored / scoring_seconds,
            "scoring_tokens_per_second": tally.run.real / scoring_seconds,
            "run_tickets_per_second": rows["read"] / run_seconds,
        },
        tokens=report.token_counts(tally, scoring.strategy.name, len(scoring.prompt.prefix)),
        padding_fraction=report.padding_fractions(tally),
        batches=report.batch_summary(tally),
        score_histogram=score_histogram,
        margin_histogram=margin_histogram,
        certification=certification,
        tuning=scoring.tuning.summary(),
        drift=None,
        model={
            "name": readable(scoring.folder.name),
            "revision": scoring.folder.revision,
            "source": scoring.folder.source,
            "licence": scoring.folder.licence,
        },
        machine={
            "device": str(scoring.model.device),
            "dtype": fingerprint["dtype"],
            "threads": scoring.threads,
            "peak_memory_bytes": peak_memory_bytes(),
            "versions": versions(),
        },
        settings={key: _plain(value) for key, value in settings.items()}
        | {"strategy": scoring.strategy.name, "max_batch_tokens": scoring.limits.batch_tokens},
        fingerprint=fingerprint,
    )


def write_report(config: JobConfig, outcome: RunReport) -> None:
    """Write the report, and its page if one is wanted.

    Raises:
        OutputError: it cannot be written; OUT is the new one already.
    """
    try:
        with replace_atomically(config.report_path) as file:
            file.write(outcome.to_json().encode())
        if config.page_path is not None:
            from ticket_etl.report_html import render_page  # draws with matplotlib, which takes a second to load

            with replace_atomically(config.page_path) as file:
                file.write(render_page(outcome).encode())
    except OutputError as error:
        raise OutputError(f"{config.output} is complete, but not its report: {error}") from error


def utc_now() -> str:
    """The time now, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _plain(value: object) -> object:
    if isinstance(value, str | Path):
        return readable(str(value))
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
