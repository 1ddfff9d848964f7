"""The command line: parses, calls, prints, and turns every error into one line and its exit code.

Heavy imports stand inside the commands, so that `--help` answers at once.
"""

import dataclasses
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from ticket_etl import STRATEGIES, __version__
from ticket_etl.config import JobConfig, ScoringConfig
from ticket_etl.errors import Interrupted, OutputError, TicketEtlError, UsageError
from ticket_etl.options import (
    PATH,
    cache_option,
    common_options,
    json_option,
    option,
    output_prefix_option,
    scoring_options,
)
from ticket_etl.process import (
    check_current_folder,
    drop_standard_output,
    ignore_signals,
    prepare_memory,
    prepare_streams,
    readable,
    signals_interrupt,
)

log = logging.getLogger("ticket_etl")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the documented code."""
    code = run_command(arguments)
    ignore_signals()  # what is done is done: a signal while the interpreter shuts down must not change the code
    sys.exit(code)


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; every error is printed here and nowhere else."""
    prepare_streams()
    prepare_memory()
    try:
        check_current_folder()
        with (
            signals_interrupt(),
            cli.make_context("ticket-etl", sys.argv[1:] if arguments is None else arguments) as top,
        ):
            return int(cli.invoke(top) or 0)
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context is not None else ""
        return _fail(f"{error.format_message()}{hint}", 2)
    except (TicketEtlError, Interrupted) as error:
        return _fail(str(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _fail(str(Interrupted(signal.SIGINT)), 128 + signal.SIGINT)
    except BrokenPipeError:
        drop_standard_output()
        return 128 + signal.SIGPIPE
    except Exception as error:
        log.debug("traceback", exc_info=True)
        return _fail(f"unexpected {type(error).__name__}: {error} (--verbose shows where)", 1)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ticket-etl")
def cli() -> None:
    """Label support tickets with a small language model, in padding-free batches, exactly.

    \b
    Exit codes: 0 done, 1 unexpected error, 2 usage, 3 input, 4 output, 5 done but some tickets failed or were
    quarantined, 6 another run holds OUT, 7 model, 8 verification found disagreement, 129/130/143 stopped by a signal.

    \b
    Example:  ticket-etl classify tickets.parquet labelled.parquet
    """
    logging.basicConfig(format="ticket-etl: %(message)s", stream=sys.stderr, level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@click.argument("output", metavar="OUT", type=PATH)
@output_prefix_option
@option("--replace-columns", is_flag=True, help="Replace input columns that have an output column's name.")
@option("--clobber/--no-clobber", default=True, help="Whether an existing OUT may be replaced.")
@option(
    "--min-score",
    type=click.FloatRange(0, 1),
    metavar="P",
    help="Labels of a lower probability do not stand: status abstained, no label.  [default: all stand]",
)
@option(
    "--min-margin",
    type=click.FloatRange(min=0),
    metavar="M",
    help="The same for labels closer to the runner-up, in log-odds.  [default: all stand]",
)
@option("--fallback-label", metavar="NAME", help="What the label column holds where a label does not stand.")
@cache_option
@option(
    "--report",
    type=PATH,
    metavar="FILE",
    help="Where the report goes; a page (.html) comes beside the JSON.  [default: OUT.report.json]",
)
@option(
    "--compare-report",
    type=PATH,
    metavar="FILE",
    help="Report of an earlier run, as OUT.report.json; warn if labels or scores have shifted since.",
)
@scoring_options
@click.pass_context
def classify(context: click.Context, **settings: Any) -> int:
    """Label every ticket of IN and write OUT.

    IN is a Parquet or JSONL file (.parquet, .jsonl, .ndjson; JSONL also .gz, .zst), a folder of such files, or - for
    JSONL on standard input. OUT gets every column of IN and label, label_score, label_margin, label_status.

    \b
    Example:  ticket-etl classify tickets.parquet labelled.parquet --labels labels.toml
    """
    from ticket_etl.pipeline import run

    config = JobConfig(**settings)
    with _progress(context) as on_progress:
        report = run(config, on_progress)
    if not context.meta.get("quiet"):
        written = [config.output, config.report_path, *([config.page_path] if config.page_path else [])]
        click.echo(f"{report}\nwrote       {', '.join(map(str, written))}", err=True)
    return report.exit_code


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@scoring_options
def plan(**settings: Any) -> int:
    """Tokenize IN only, and show what each strategy would compute. No model weights are loaded.

    \b
    Example:  ticket-etl plan tickets.parquet --labels labels.toml
    """
    from ticket_etl.planning import plan_input

    _print(plan_input(ScoringConfig(**settings)))
    return 0


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@option(
    "--sample",
    type=click.IntRange(min=1),
    default=60,
    metavar="N",
    help="Tickets compared: a seeded sample over all lengths.",
)
@option("--all", "everything", is_flag=True, help="Compare every ticket.")
@scoring_options
@click.pass_context
def verify(context: click.Context, sample: int, everything: bool, **settings: Any) -> int:
    """Compare a strategy with the reference, each ticket alone and unpadded in float32; exit 8 if a label differs.

    \b
    Example:  ticket-etl verify tickets.parquet --strategy packed+prefix --sample 100
    """
    from ticket_etl.verify import verify_input

    with _progress(context) as on_progress:
        outcome = verify_input(ScoringConfig(**settings), None if everything else sample, on_progress)
    _print(outcome)
    return outcome.exit_code


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@option(
    "--sample",
    type=click.IntRange(min=1),
    default=96,
    metavar="N",
    help="Tickets timed: a seeded sample over all lengths.",
)
@option("--repeats", type=click.IntRange(min=1), default=3, help="Rounds over all strategies; medians are shown.")
@option(
    "--only",
    multiple=True,
    metavar="NAME",
    type=click.Choice(list(STRATEGIES)),
    help="Time these strategies (repeat) instead of all.",
)
@json_option
@option("--plot", type=PATH, metavar="FILE", help="Draw the table too: .png, .svg or .pdf (needs the extra `report`).")
@partial(scoring_options, several_dtypes=True)
@click.pass_context
def bench(context: click.Context, **settings: Any) -> int:
    """Time every strategy on the same tickets, interleaved in one process, and check its labels.

    \b
    Example:  ticket-etl bench tickets.parquet --sample 64 --json bench.json --plot bench.svg
    """
    from ticket_etl.atomic import replace_atomically
    from ticket_etl.bench import bench_input
    from ticket_etl.bench_plot import check_plot, draw
    from ticket_etl.preflight import check_result_path

    sample, repeats, only, json_path, plot, dtypes = (
        settings.pop(name) for name in ("sample", "repeats", "only", "json_path", "plot", "dtypes")
    )
    config = ScoringConfig(**settings)
    for role, path in (("--json", json_path), ("--plot", plot)):
        if path is not None:
            check_result_path(role, path, config)
    if plot is not None:
        check_plot(plot)
    with _progress(context) as on_progress:
        table = bench_input(config, sample, repeats, only or tuple(STRATEGIES), dtypes, on_progress)
    _print(table)  # first: whatever happens to the files, what took minutes is there
    if json_path is not None:
        with replace_atomically(json_path) as file:
            file.write(table.to_json().encode())
    if plot is not None:
        draw(table, plot)
    return table.exit_code


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@option("--gold", required=True, metavar="COLUMN", help="Column with the true labels.")
@option("--head", "head_path", type=PATH, required=True, metavar="FILE", envvar=None, help="Where the head goes.")
@option(
    "--precision",
    type=click.FloatRange(0.0, 1.0),
    metavar="SHARE",
    help="Learn from which score on this share of the labels is right; below it, classify --head abstains.",
)
@partial(scoring_options, reads_labels=False)
@click.pass_context
def fit(context: click.Context, gold: str, head_path: Path, precision: float | None, **settings: Any) -> int:
    """Learn a head from labels that people gave.

    `classify --head` then labels by it, in the same forward pass. Prints what the head reaches on held-out tickets,
    beside zero-shot labels and a bag of words. Needs the extra `fit`.

    \b
    Example:  ticket-etl fit lastmonth.parquet --gold gold --labels labels.toml --head tickets.head
    """
    if find_spec("sklearn") is None:
        raise UsageError("fit needs scikit-learn: pip install 'ticket-etl[fit]'")
    from ticket_etl.fit import fit_input

    with _progress(context) as on_progress:
        outcome = fit_input(ScoringConfig(**settings), gold, head_path, precision=precision, on_progress=on_progress)
    _print(outcome)
    return 0


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@option("--gold", required=True, metavar="COLUMN", help="Column with the true labels.")
@output_prefix_option
@cache_option
@json_option
@scoring_options
@click.pass_context
def evaluate(context: click.Context, gold: str, **settings: Any) -> int:
    """Compare the labels of IN with gold labels: accuracy, macro-F1, each label, calibration, coverage.

    IN is a file that classify wrote; any other is labelled first, as classify would, into a temporary file. Tickets
    without a gold label, and those that are abstained, empty or failed, are counted and left out. A gold label that is
    none of the labels counts as wrong. Needs the extra `fit`.

    \b
    Example:  ticket-etl evaluate labelled.parquet --gold gold --json evaluation.json
    """
    from ticket_etl.evaluate import evaluate_input

    own = {name: settings.pop(name) for name in ("output_prefix", "cache", "json_path")}
    with _progress(context) as on_progress:
        outcome = evaluate_input(ScoringConfig(**settings), gold, **own, on_progress=on_progress)
    _print(outcome)
    return outcome.exit_code


@cli.command(no_args_is_help=True)
@click.argument("file", type=PATH)
@option("--model", metavar="NAME_OR_PATH", help="Whose tokenizer to use.")
@common_options
def labels(file: Path, model: str | None) -> int:
    """Check a label file: the tokens of each label, collisions, and what scoring will cost.

    \b
    Example:  ticket-etl labels labels.toml
    """
    from ticket_etl.planning import describe_labels

    _print(describe_labels(file, model))
    return 0


@cli.group()
def model() -> None:
    """Find, fetch and describe models."""


@model.command("list")
@common_options
def model_list() -> int:
    """List the models that are known or installed.

    KIND is causal (labels by constrained scoring) or encoder (labels by similarity to their descriptions, or by a
    fitted head). QUALITY is accuracy on public data sets, - where it has not been measured.

    \b
    Example:  ticket-etl model list
    """
    from ticket_etl.models import list_models

    rows: list[tuple[str, ...]] = [("NAME", "KIND", "SOURCE", "SIZE", "LICENCE", "QUALITY", "INSTALLED", "DEFAULT")]
    rows += [
        (
            each.name,
            each.kind,
            each.source,
            f"{each.size_bytes / 1e6:,.0f} MB",
            each.licence or "?",
            each.quality or "-",
            _yes(each.installed),
            _yes(each.default),
        )
        for each in list_models()
    ]
    _print(_table(rows))
    return 0


@model.command("pull")
@click.argument("name")
@option("--revision", metavar="SHA", help="Commit to download.  [default: the pinned one]")
@option("--make-default", is_flag=True, help="Use this model whenever --model is not given.")
@common_options
def model_pull(name: str, revision: str | None, make_default: bool) -> int:
    """Download a model at a pinned revision (safetensors only), or check that an embedded one is ready.

    \b
    Example:  ticket-etl model pull Qwen/Qwen2.5-0.5B-Instruct --make-default
    """
    from ticket_etl.models import pull_model

    folder = pull_model(name, revision=revision, make_default=make_default)
    _print(f"{folder.name} {folder.revision} is at {folder.path}")
    return 0


@model.command("info")
@click.argument("name", required=False)
@common_options
def model_info(name: str | None) -> int:
    """Describe an installed model: where it lies, its revision, size and kind.

    \b
    Example:  ticket-etl model info smollm2
    """
    from ticket_etl.models import model_info as describe

    facts = dataclasses.asdict(describe(name))
    width = max(map(len, facts))
    known = {key: value for key, value in facts.items() if value is not None}
    _print("\n".join(f"{key.replace('_', ' '):{width}}  {value}" for key, value in known.items()))
    return 0


def _print(text: object) -> None:
    """Print what was asked for on standard output."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_standard_output()
        raise OutputError(f"cannot write standard output: {error.strerror}; nothing else was changed") from error


@contextmanager
def _progress(context: click.Context) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, silence elsewhere: a log wants no carriage returns."""
    hidden = not sys.stderr.isatty() or bool(context.meta.get("quiet"))
    with click.progressbar(length=1, label="scoring", file=sys.stderr, hidden=hidden, show_pos=True) as bar:

        def on_progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield on_progress


def _yes(value: bool) -> str:
    return "yes" if value else "-"


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _fail(message: str, code: int) -> int:
    click.echo(f"ticket-etl: error: {readable(' '.join(message.split()))}", err=True)
    return code
