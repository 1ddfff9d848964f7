"""The nightly job, on one screen: read -> encode -> plan -> score -> restore order -> journal -> write -> report."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pyarrow as pa

from ticket_etl.cache import open_cache
from ticket_etl.config import JobConfig
from ticket_etl.fingerprint import job_fingerprint
from ticket_etl.journal import Journal, open_journal
from ticket_etl.label_drift import compare_runs, drift_warnings
from ticket_etl.preflight import check_paths, read_abstention, read_earlier_run, read_request
from ticket_etl.report import RunReport
from ticket_etl.reporting import make_report, utc_now, write_report
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
    read_abstention(config)
    earlier = read_earlier_run(config)
    request = read_request(config)
    abstention = read_abstention(config, request.head)
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
            tickets.write_rejects(config.rejects_path)  # before OUT: an OUT of tonight has everything beside it
            write_labelled(tickets, config.output, labelled, output_columns=schema, **options)
        certification = None if certifier is None else certifier.summary()
        seconds = time.monotonic() - clock
        outcome = make_report(config, tickets, scoring, tally, fingerprint, certification, started, seconds)
        if earlier is not None:
            drift = compare_runs(earlier, outcome)
            outcome = dataclasses.replace(outcome, drift=drift)
            for line in drift_warnings(drift):
                log.warning("%s", line)
        write_report(config, outcome)
        journal.discard()  # not before: a run that is killed here has only the files to write again
        if certifier is not None:
            scoring.keep_profile(certifier)
    return outcome


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
