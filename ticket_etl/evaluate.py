"""`ticket-etl evaluate`: labels held against gold labels, from a scored file or by scoring one.

A file that holds all four output columns is taken as it is. Any other is labelled first, by the very pipeline of
`classify`, into a temporary folder that needs room for a copy of it.
"""

import dataclasses
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_etl import __version__
from ticket_etl.atomic import replace_atomically
from ticket_etl.config import JobConfig, ScoringConfig
from ticket_etl.errors import OutputError, UsageError
from ticket_etl.labels import load_labels
from ticket_etl.preflight import check_result_path
from ticket_etl.process import readable
from ticket_etl.tickets.files import JSONL, find_parts

if TYPE_CHECKING:
    from ticket_etl.evaluation import Evaluation
    from ticket_etl.gold import LabelledGold
    from ticket_etl.report import RunReport

log = logging.getLogger("ticket_etl")


def evaluate_input(
    config: ScoringConfig,
    gold: str,
    *,
    output_prefix: str = "",
    cache: Path | None = None,
    json_path: Path | None = None,
    on_progress: Callable[[int, int], None],
) -> "Evaluation":
    """Compare labels with the gold labels of a column, and write the outcome to `json_path` if that is given.

    Raises:
        UsageError: scikit-learn is missing, or there is no such column.
        InputError: nothing can be evaluated, or the label columns are not those of `classify`.
        OutputError: there is no room for the temporary files, or for the outcome.
    """
    if find_spec("sklearn") is None:
        raise UsageError("evaluate needs scikit-learn: pip install 'ticket-etl[fit]'")
    from ticket_etl.gold import free_prefix, missing_columns, open_gold, read_gold  # loads scikit-learn

    if json_path is not None:
        check_result_path("--json", json_path, config)
    with ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder())
        source = _copy_of_standard_input(folder) if config.input == "-" else config.input
        tickets = stack.enter_context(open_gold(source, gold, config.bad_records))
        quarantined, run = tickets.num_quarantined, None
        if missing := missing_columns(tickets, output_prefix):
            log.info("%s has no %s; labelling it now", readable(config.input), ", ".join(missing))
            output_prefix = free_prefix(tickets, output_prefix)
            scored = folder / f"scored.{tickets.format}"
            run = _classify(config, source, scored, output_prefix, cache, on_progress)
            tickets = stack.enter_context(open_gold(str(scored), gold))
        labelled = read_gold(tickets, gold, output_prefix, readable(config.input))
    known = load_labels(config.labels).names if run or config.labels else None
    outcome = make_evaluation(config, gold, labelled, quarantined, known, run)
    if json_path is not None:
        with replace_atomically(json_path) as file:
            file.write(outcome.to_json().encode())
    return outcome


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder for the time of the block.

    Raises:
        OutputError: there is no place for one.
    """
    with ExitStack() as stack:
        try:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="ticket-etl-"))
        except OSError as error:
            raise OutputError(
                f"no temporary folder ({error.strerror}); set TMPDIR to one that can be written"
            ) from error
        yield Path(name)


def _copy_of_standard_input(folder: Path) -> str:
    """Standard input as a file: it may have to be read by `classify` too.

    Raises:
        OutputError: there is no room for it.
    """
    _, (part,) = find_parts("-")
    copy = folder / f"standard-input.{JSONL}"
    try:
        with part.open() as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target)
    except OSError as error:
        reason = f"standard input cannot be copied to {folder} ({error.strerror})"
        raise OutputError(f"{reason}; free some space there, or set TMPDIR to another disk") from error
    finally:
        part.close()
    return str(copy)


def _classify(
    config: ScoringConfig,
    source: str,
    output: Path,
    prefix: str,
    cache: Path | None,
    on_progress: Callable[[int, int], None],
) -> "RunReport":
    from ticket_etl.pipeline import run

    asked = {field.name: getattr(config, field.name) for field in dataclasses.fields(ScoringConfig)}
    job = JobConfig(**(asked | {"input": source}), output=output, output_prefix=prefix, cache=cache)
    return run(job, on_progress)


def make_evaluation(
    config: ScoringConfig,
    gold: str,
    tickets: "LabelledGold",
    quarantined: int,
    label_set: Sequence[str] | None,
    run: "RunReport | None",
) -> "Evaluation":
    """Measure all that the outcome shows; `label_set` are the labels that could be given, where that is known."""
    from ticket_etl import metrics
    from ticket_etl.evaluation import Evaluation

    correct = tickets.gold == tickets.given
    with_gold = sum(tickets.outcomes.values()) - tickets.outcomes["no_gold"]
    measured = metrics.label_metrics(tickets.gold, tickets.given, tickets.names, config.seed)
    in_gold = {row["label"]: row["support"] for row in measured["labels"] if row["support"]}
    never_given = {row["label"] for row in measured["labels"] if not row["given"]}
    frequent = next(iter(in_gold))
    outside = None if label_set is None else {name: count for name, count in in_gold.items() if name not in label_set}
    return Evaluation(
        version=__version__,
        input=readable(config.input),
        gold=gold,
        model=None if run is None else run.model,
        rows={"read": sum(tickets.outcomes.values()) + quarantined, **tickets.outcomes, "quarantined": quarantined},
        with_gold=with_gold,
        most_frequent={"label": frequent, "share": in_gold[frequent] / len(correct)},
        gold_never_given={name: count for name, count in in_gold.items() if name in never_given},
        gold_outside_labels=outside,
        calibration=metrics.calibration(tickets.scores, correct, config.seed),
        coverage={
            "score": metrics.coverage(tickets.scores, correct, with_gold, config.seed),
            "margin": metrics.coverage(tickets.margins, correct, with_gold, config.seed),
        },
        bootstrap={"resamples": metrics.RESAMPLES, "level": metrics.LEVEL, "seed": config.seed},
        **measured,
    )
