"""The command line: parses, calls, prints, and turns every error into one line and its exit code.

Heavy imports stand inside the commands, so that `--help` answers at once. A setting comes from its flag, else from the
environment (`TICKET_ETL_` and the option's name), else from the configuration file, else from its default.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import click

from ticket_etl import STRATEGIES, __version__
from ticket_etl.config import DEVICES, DTYPES, JobConfig, ScoringConfig, read_settings
from ticket_etl.errors import Interrupted, OutputError, TicketEtlError

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("ticket_etl")

_WAY_OUT_SECONDS = 10.0


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with the documented code."""
    sys.exit(run_command(arguments))


def run_command(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; every error is printed here and nowhere else."""
    _prepare_streams()
    try:
        with (
            _signals_interrupt(),
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
        # The reader of our output has gone; keep the interpreter from complaining about it while it shuts down.
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
        return 128 + signal.SIGPIPE
    except Exception as error:
        log.debug("traceback", exc_info=True)
        return _fail(f"unexpected {type(error).__name__}: {error} (--verbose shows where)", 1)


def _fail(message: str, code: int) -> int:
    click.echo(f"ticket-etl: error: {' '.join(message.split())}", err=True)
    return code


def _prepare_streams() -> None:
    """Print UTF-8 whatever the locale (cron's is often plain ASCII), and give closed streams a place to go.

    Without the latter, the next file opened would take the closed stream's number, and be printed into.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Standard input is opened for writing, so that reading it fails instead of finding nothing.
            os.open(os.devnull, os.O_WRONLY)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _print(text: object) -> None:
    """Print what was asked for on standard output."""
    try:
        click.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write standard output: {error.strerror}; nothing else was changed") from error


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Turn termination signals into `Interrupted`, so that every file is left as it should be."""

    raised_at = float("-inf")

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        nonlocal raised_at
        # The way out must not be interrupted by an impatient second signal; but should a callback have swallowed the
        # first, a later one is heard.
        if time.monotonic() - raised_at > _WAY_OUT_SECONDS:
            raised_at = time.monotonic()
            raise Interrupted(signum)

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    caught = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # A signal that the parent ignores (nohup) stays ignored.
    caught = [each for each in caught if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, interrupt) for each in caught}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# --- options --------------------------------------------------------------------------------------------------------


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that can also come from `TICKET_ETL_<NAME>`, with its default shown."""
    variable = "TICKET_ETL_" + names[0].split("/")[0].removeprefix("--").upper().replace("-", "_")
    defaults: dict[str, Any] = {"envvar": variable, "show_envvar": True, "show_default": True}
    return click.option(*names, **(defaults | settings))


def _use_settings(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the configuration file's values the defaults of this command's options."""
    known = {parameter.name for command in cli.commands.values() for parameter in _all_parameters(command)}
    settings = read_settings(path, {name for name in known if name})
    context.default_map = settings | dict(context.default_map or {})


def _all_parameters(command: click.Command) -> list[click.Parameter]:
    nested = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(parameter for inner in nested for parameter in _all_parameters(inner))]


def _set_verbosity(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        log.setLevel(logging.WARNING if parameter.name == "quiet" else logging.DEBUG)
        context.meta[parameter.name or ""] = True


PATH = click.Path(path_type=Path)


def common_options(command: F) -> F:
    """Options of every command."""
    for decorate in (
        option(
            "--verbose", is_flag=True, expose_value=False, callback=_set_verbosity, help="Say more on standard error."
        ),
        option("--quiet", is_flag=True, expose_value=False, callback=_set_verbosity, help="Say nothing but warnings."),
        option(
            "--config",
            type=PATH,
            is_eager=True,
            expose_value=False,
            callback=_use_settings,
            help="Configuration file (TOML).  [default: ticket-etl.toml, if it is there]",
        ),
    ):
        command = decorate(command)
    return command


def scoring_options(command: F) -> F:
    """Options of the commands that prepare or score tickets."""
    defaults = ScoringConfig(input="")
    strategies = click.Choice(list(STRATEGIES))
    for decorate in (
        common_options,
        option("--seed", type=int, default=defaults.seed, help="Seed of every random choice."),
        option(
            "--bad-records",
            type=click.Choice(["stop", "quarantine"]),
            default=defaults.bad_records,
            help="What a malformed JSONL line does: stop the run, or go to OUT.rejects.jsonl.",
        ),
        option(
            "--max-ticket-tokens",
            type=click.IntRange(min=1),
            default=defaults.max_ticket_tokens,
            help="Longer tickets are labelled from their head and tail.",
        ),
        option(
            "--window-tickets",
            type=click.IntRange(min=1),
            default=defaults.window_tickets,
            help="Tickets that are sorted and batched together; bounds memory, and work lost when killed.",
        ),
        option(
            "--max-batch-tokens",
            type=click.IntRange(min=1),
            default=defaults.max_batch_tokens,
            help="Tokens a batch holds, for the packed and token-budget strategies.",
        ),
        option(
            "--batch-tickets",
            type=click.IntRange(min=1),
            default=defaults.batch_tickets,
            help="Tickets a batch, for the naive, arrival and bucketed strategies.",
        ),
        option(
            "--strategy",
            type=strategies,
            default=defaults.strategy,
            metavar="NAME",
            help="How tickets are batched: " + ", ".join(STRATEGIES) + ".",
        ),
        option(
            "--certify/--no-certify",
            default=defaults.certify,
            help="Below float32: re-score in float32 every ticket whose label could differ from float32's.",
        ),
        option("--dtype", type=click.Choice(DTYPES), default=defaults.dtype, help="Precision; auto is float32."),
        option("--device", type=click.Choice(DEVICES), default=defaults.device, help="Where the model runs."),
        option(
            "--model",
            metavar="NAME_OR_PATH",
            help="Name from `ticket-etl model list`, or a folder.  [default: smollm2, or `model pull --make-default`]",
        ),
        option(
            "--text-column",
            "text_columns",
            multiple=True,
            metavar="NAME",
            help="Column with the text; repeat to join several with a blank line.  [default: text, else body, else"
            " description, else the only string column]",
        ),
        option("--labels", type=PATH, metavar="FILE", help="Label file (TOML).  [default: built-in support labels]"),
    ):
        command = decorate(command)
    return command


# --- commands --------------------------------------------------------------------------------------------------------


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="ticket-etl")
def cli() -> None:
    """Label support tickets with a small language model, in padding-free batches, exactly.

    \b
    Exit codes: 0 done, 1 unexpected error, 2 usage, 3 input, 4 output, 5 done but some tickets failed or were
    quarantined, 6 another run holds OUT, 7 model, 8 verification found disagreement, 130/143 stopped by a signal.

    \b
    Example:  ticket-etl classify tickets.parquet labelled.parquet
    """
    logging.basicConfig(format="ticket-etl: %(message)s", stream=sys.stderr, level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)


@cli.command(no_args_is_help=True)
@click.argument("input", metavar="IN")
@click.argument("output", metavar="OUT", type=PATH)
@option("--output-prefix", default="", metavar="TEXT", help="Put before the names of the output columns.")
@option("--replace-columns", is_flag=True, help="Replace input columns that have an output column's name.")
@option("--clobber/--no-clobber", default=True, help="Whether an existing OUT may be replaced.")
@option(
    "--cache",
    type=PATH,
    metavar="FILE",
    envvar="TICKET_ETL_CACHE_FILE",
    help="Keep labels by text in this file (SQLite), so that the next run scores only new texts.",
)
@option("--report", type=PATH, metavar="FILE", help="Where the JSON report goes.  [default: OUT.report.json]")
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
        click.echo(f"{report}\nwrote       {config.output} and {config.report_path}", err=True)
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
@option("--json", "json_path", type=PATH, metavar="FILE", help="Write the table as JSON too.")
@scoring_options
@click.pass_context
def bench(context: click.Context, **settings: Any) -> int:
    """Time every strategy on the same tickets, interleaved in one process, and check its labels.

    \b
    Example:  ticket-etl bench tickets.parquet --sample 64 --json bench.json
    """
    from ticket_etl.bench import bench_input

    sample, repeats, only, json_path = (settings.pop(name) for name in ("sample", "repeats", "only", "json_path"))
    with _progress(context) as on_progress:
        table = bench_input(ScoringConfig(**settings), sample, repeats, only or tuple(STRATEGIES), on_progress)
    if json_path is not None:
        from ticket_etl.tickets import replace_atomically

        with replace_atomically(json_path) as file:
            file.write(table.to_json().encode())
    _print(table)
    return table.exit_code


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

    \b
    Example:  ticket-etl model list
    """
    from ticket_etl.models import list_models

    rows: list[tuple[str, ...]] = [("NAME", "KIND", "SOURCE", "SIZE", "LICENCE", "INSTALLED", "DEFAULT")]
    rows += [
        (
            each.name,
            each.kind,
            each.source,
            f"{each.size_bytes / 1e6:,.0f} MB",
            each.licence or "?",
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
    """Download a model at a pinned revision (safetensors only).

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

    _print(describe(name))
    return 0


# --- printing --------------------------------------------------------------------------------------------------------


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
