"""The nightly job, on one screen: read -> encode -> plan -> score -> restore order -> journal -> write -> report."""

import dataclasses
import datetime
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ticket_etl import __version__, report
from ticket_etl.atomic import replace_atomically
from ticket_etl.cache import open_cache
from ticket_etl.config import JobConfig
from ticket_etl.errors import OutputError
from ticket_etl.journal import Journal, fingerprint_text, open_journal
from ticket_etl.label_drift import compare_runs, drift_warnings
from ticket_etl.machine import peak_memory_bytes, versions
from ticket_etl.preflight import check_abstention, check_earlier_run, check_paths, check_request
from ticket_etl.process import readable
from ticket_etl.report import RunReport
from ticket_etl.tally import Tally
from ticket_etl.tickets import Tickets, check_output, open_tickets, write_labelled
from ticket_etl.verdicts import Abstention, output_batch, output_schema
from ticket_etl.windows import one_ahead, windows

if TYPE_CHECKING:
    from ticket_etl.labeller import Labeller, PreparedWindow
    from ticket_etl.scoring import Scoring

log = logging.getLogger("ticket_etl")

WINDOW_CHARACTERS = 32 << 20
"""Text held by one window, whatever the number of its tickets."""

Progress = Callable[[int, int], None]
"""Told (rows done, rows in all) as scoring goes on."""


def no_progress(done: int, total: int) -> None:
    """Progress that nobody watches."""


def run(config: JobConfig, on_progress: Progress = no_progress) -> RunReport:
    """Label every ticket of the input and replace the output.

    What can be refused is refused in this order, before the model loads: the paths that are written, labels, model,
    the lock on the output, the input, its columns. A run that stops early leaves the old output as it was, and the
    journal for the next run to go on from.

    Raises:
        UsageError, InputError, OutputError, BusyError, ModelError: what is refused; see the exit codes in the README.
        Interrupted: a signal came; the next run goes on.
    """
    clock, started = time.monotonic(), utc_now()
    check_paths(config)
    check_abstention(config)
    earlier = check_earlier_run(config)
    request = check_request(config)
    abstention = check_abstention(config, request.head)
    config = dataclasses.replace(config, min_score=abstention.min_score or config.min_score)  # as the head has learned
    labels, folder = request.labels, request.folder
    tally = Tally(labels=len(labels.names))
    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(config.output))
        with tally.stage("open"):
            tickets = stack.enter_context(
                open_tickets(
                    config.input,
                    text_columns=config.text_columns,
                    bad_records=config.bad_records,
                )
            )
            if tickets.num_invalid_texts:
                log.info("%d texts are not UTF-8; U+FFFD stands for what cannot be read", tickets.num_invalid_texts)
            schema = output_schema(config.output_prefix)
            options = {"replace_columns": config.replace_columns}
            check_output(tickets, config.output, output_columns=schema, clobber=config.clobber, **options)
        with tally.stage("load"):
            from ticket_etl.scoring import Scoring  # loads torch: not before the input and output are known to be good

            scoring = Scoring(config, labels, folder, head=request.head)
            scoring.check_on(next(tickets.texts(), []))
        fingerprint = job_fingerprint(config, tickets, scoring)
        tally.resumed_rows = journal.bind(fingerprint)
        if tally.resumed_rows:
            log.info("resuming: %d of %d rows are scored already", tally.resumed_rows, tickets.num_rows)
        cache = stack.enter_context(open_cache(config.cache, fingerprint))
        certifier = scoring.certifier()
        labeller = scoring.labeller(tally, certifier, cache)
        score_windows(config, tickets, labeller, journal, tally, lambda done: on_progress(done, tickets.num_rows))
        with tally.stage("write"):
            labelled = labelled_batches(journal, tally, scoring, config.output_prefix, abstention)
            write_labelled(tickets, config.output, labelled, output_columns=schema, **options)
            tickets.write_rejects(config.rejects_path)
        journal.discard()
        if certifier is not None:
            scoring.keep_profile(certifier)
        certification = None if certifier is None else certifier.summary()
        seconds = time.monotonic() - clock
        outcome = make_report(config, tickets, scoring, tally, fingerprint, certification, started, seconds)
        if earlier is not None:
            drift = compare_runs(earlier, outcome)
            outcome = dataclasses.replace(outcome, drift=drift)
            for line in drift_warnings(drift):
                log.warning("%s", line)
        write_report(config, outcome)
    return outcome


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


def score_windows(
    config: JobConfig,
    tickets: Tickets,
    labeller: "Labeller",
    journal: Journal,
    tally: Tally,
    on_done: Callable[[int], None],
) -> None:
    """Score the windows that the journal does not hold, and record each; the next is prepared meanwhile."""
    finished = journal.numbers()

    def prepare(numbered: tuple[int, list[str | None]]) -> tuple[int, "PreparedWindow"]:
        number, texts = numbered
        with tally.stage("prepare"):
            return number, labeller.prepare(texts, encode=number not in finished)

    done_rows = 0
    bounded = windows(tickets.texts(), tickets=config.window_tickets, characters=WINDOW_CHARACTERS)
    for number, window in one_ahead(enumerate(bounded), prepare):
        if number in finished:
            labeller.recall(window, journal.get(number))
        else:

            def advance(scored: int, before: int = done_rows) -> None:
                on_done(before + scored)

            journal.append(number, labeller.label(window, advance))
        done_rows += len(window.rows)
        on_done(done_rows)


def labelled_batches(
    journal: Journal, tally: Tally, scoring: "Scoring", prefix: str, abstention: Abstention
) -> Iterator[pa.RecordBatch]:
    """The output columns of all rows, in order, counted on their way."""
    for _, scored in journal.windows():
        verdicts = abstention.apply(scored)
        tally.count_verdicts(verdicts)
        yield output_batch(verdicts, scoring.labels.names, prefix, abstention.fallback)


def job_fingerprint(config: JobConfig, tickets: Tickets, scoring: "Scoring") -> dict[str, str]:
    """Everything that decides a score, part by part, so that a mismatch can be named."""
    return {
        "input": tickets.content_hash,
        "text columns": fingerprint_text(tickets.text_columns),
        "labels": fingerprint_text([dataclasses.asdict(scoring.labels)["labels"], scoring.prompt.sequences]),
        "head": "none" if scoring.head is None else scoring.head.fingerprint,
        "prompt": scoring.prompt.fingerprint,
        "calibration": str(config.calibrate),
        "model": scoring.folder.revision,  # a hash or a commit, wherever the folder lies
        "dtype": str(scoring.dtype).removeprefix("torch."),
        "device": str(scoring.model.device),
        "strategy": scoring.strategy.name,
        "certification": fingerprint_text([config.certify, config.seed]),
        "drift profile": fingerprint_text(None if scoring.profile is None else scoring.profile.in_force),
        "batch limits": fingerprint_text(
            [scoring.limits.batch_tickets, scoring.limits.batch_tokens, config.window_tickets]
        ),
        "max ticket tokens": str(scoring.encoder.max_ticket_tokens),
        "version": __version__,
    }


def make_report(
    config: JobConfig,
    tickets: Tickets,
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


def utc_now() -> str:
    """The time now, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _plain(value: object) -> object:
    if isinstance(value, str | Path):
        return readable(str(value))
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
