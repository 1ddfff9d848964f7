"""The options of the command line, the same words for every command.

A setting comes from its flag, else from the environment (`TICKET_ETL_` and the option's name), else from the
configuration file, else from its default.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ticket_etl import STRATEGIES
from ticket_etl.config import DEVICES, DTYPES, ScoringConfig, read_settings
from ticket_etl.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("ticket_etl")


class ColumnName(click.ParamType):
    """A column's name, which may hold spaces; in the environment, several stand one a line."""

    name = "column"

    def split_envvar_value(self, rv: str) -> list[str]:
        """Split at line breaks only."""
        return rv.splitlines()


class TokenCount(click.ParamType):
    """A number of tokens from 1 up, or `auto`, which becomes None."""

    name = "n|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """`auto` is for the device to decide."""
        return None if value == "auto" else click.IntRange(min=1).convert(value, param, ctx)


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """An option that can also come from `TICKET_ETL_<NAME>` and the configuration file, with its default shown.

    With `envvar=None` it comes from its flag alone: what it names would be lost if it stood there for another command.
    """
    variable = "TICKET_ETL_" + names[0].split("/")[0].removeprefix("--").upper().replace("-", "_")
    defaults: dict[str, Any] = {"envvar": variable, "show_envvar": True, "show_default": True}
    return click.option(*names, **(defaults | settings))


def _use_settings(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Make the configuration file's values the defaults of this command's options.

    Keys are the long option names, with dashes or underscores: `model = "smollm2"`, `max-ticket-tokens = 512`. Values
    are checked like those of flags; a list is for an option that can be repeated.
    """
    source, settings = read_settings(path)
    # The command's own options last: one word may be repeated here and not there.
    known = [*_all_options(context.find_root().command), *_all_options(context.command)]
    options = {name: each for each in known for name in each.opts}
    opposites = {name: each for each in options.values() for name in each.secondary_opts}
    defaults = dict(context.default_map or {})
    for key, value in settings.items():
        word = "--" + key.replace("_", "-")
        found = options.get(word) or opposites.get(word)
        if found is None or found.name is None:
            raise UsageError(f"configuration {source} has an unknown key {key!r}; keys are long option names, as model")
        if found.envvar is None:  # by flag only
            continue
        given = _as_given(value, found, f"configuration {source}: {key}")
        defaults[found.name] = not given if word in opposites else given
    context.default_map = defaults


def _as_given(value: Any, target: click.Option, where: str) -> Any:
    """A configured value as a flag would have given it."""
    values = value if isinstance(value, list) and target.multiple else [value]
    if not all(isinstance(each, str | int | float) for each in values):
        raise UsageError(f"{where} must be a single value, not a {type(value).__name__}")
    if target.is_flag and not isinstance(value, bool):
        raise UsageError(f"{where} must be true or false")
    if target.is_flag:
        return value
    if any(isinstance(each, bool) for each in values):
        raise UsageError(f"{where} cannot be true or false")
    texts = [str(each) for each in values]
    return texts if target.multiple else texts[0]


def _all_options(command: click.Command) -> list[click.Option]:
    nested = command.commands.values() if isinstance(command, click.Group) else ()
    own = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return own + [option for inner in nested for option in _all_options(inner)]


def _set_verbosity(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        log.setLevel(logging.WARNING if parameter.name == "quiet" else logging.DEBUG)
        context.meta[parameter.name or ""] = True


PATH = click.Path(path_type=Path)

output_prefix_option = option(
    "--output-prefix", default="", metavar="TEXT", help="Put before the names of the output columns."
)
json_option = option("--json", "json_path", type=PATH, metavar="FILE", help="Write the outcome as JSON too.")
cache_option = option(
    "--cache",
    type=PATH,
    metavar="FILE",
    envvar="TICKET_ETL_CACHE_FILE",
    help="Keep labels by text in this file (SQLite), so that the next run scores only new texts.",
)


_dtype_option = option(
    "--dtype",
    type=click.Choice(DTYPES),
    default=ScoringConfig(input="").dtype,
    help="Precision; auto is measured: bfloat16 where a certified run gains clearly, else float32.",
)
_dtypes_option = option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(DTYPES),
    default=["auto"],
    help="Precision; repeat to compare. auto is float32 and, where the machine has it, bfloat16.",
)


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


_calibrate_option = option(
    "--calibrate/--no-calibrate",
    default=ScoringConfig(input="").calibrate,
    help="Take out the labels' prior, as it shows on tickets that say nothing (causal models without a head).",
)
_head_option = option("--head", type=PATH, metavar="FILE", help="Read labels by this head, made by `ticket-etl fit`.")


def scoring_options(command: F, *, several_dtypes: bool = False, reads_labels: bool = True) -> F:
    """Options of the commands that prepare or score tickets."""
    defaults = ScoringConfig(input="")
    strategies = click.Choice(["auto", *STRATEGIES])
    for decorate in (
        common_options,
        option("--seed", type=click.IntRange(0, 2**32 - 1), default=defaults.seed, help="Seed of every random choice."),
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
            help="Longer tickets are labelled from their beginning and end.",
        ),
        option(
            "--window-tickets",
            type=click.IntRange(min=1),
            default=defaults.window_tickets,
            help="Tickets that are sorted and batched together; bounds memory, and work lost when killed.",
        ),
        option(
            "--max-batch-tokens",
            type=TokenCount(),
            default="auto",
            help="Tokens a batch holds, for the packed and token-budget strategies; auto is measured.",
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
            help="How tickets are batched: auto (measured), " + ", ".join(STRATEGIES) + ".",
        ),
        option(
            "--certify/--no-certify",
            default=defaults.certify,
            help="Below float32: score close calls again in float32, and check a sample.",
        ),
        _dtypes_option if several_dtypes else _dtype_option,
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
            type=ColumnName(),
            metavar="NAME",
            help="Column with the text; repeat to join several with a blank line.  [default: text, else body, else"
            " description, else the only string column]",
        ),
        option("--labels", type=PATH, metavar="FILE", help="Label file (TOML).  [default: built-in support labels]"),
        *([_calibrate_option, _head_option] if reads_labels else []),
    ):
        command = decorate(command)
    return command
