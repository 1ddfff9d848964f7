"""The command line as a user meets it, in this process; tests/command runs the real one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.conftest import ROOT
from ticket_etl.cli import cli, run_command


def commands(group: click.Group = cli, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command([*name.split(), "--help"]) == 0
    text, _, options = capsys.readouterr().out.partition("Options:")
    assert f"Example:  ticket-etl {name}" in text
    assert "--config" in options


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_every_command_is_in_the_readme(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"ticket-etl {name}" in readme


def test_every_option_can_come_from_the_environment() -> None:
    for name, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                by_flag_alone = (name, parameter.name) == ("fit", "head_path")  # what `classify` reads, it writes
                from_environment = str(parameter.envvar).startswith("TICKET_ETL_")
                assert from_environment != by_flag_alone, f"{name} {parameter.name}"


def test_same_option_means_the_same_everywhere() -> None:
    seen: dict[str, tuple[object, ...]] = {}
    for _, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name not in ("sample", "model"):
                facts = (parameter.opts, parameter.default, type(parameter.type), parameter.help)
                assert seen.setdefault(parameter.name or "", facts) == facts


def test_help_and_import_do_without_torch() -> None:
    """What makes them quick: neither torch nor transformers, nor pyarrow or polars."""
    code = (
        "import sys, ticket_etl; from ticket_etl.cli import run_command; run_command(['classify', '--help']);"
        "heavy = ('torch', 'transformers', 'pyarrow', 'polars');"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["classify", "in.parquet"], 2, "Missing argument 'OUT'"),
        (
            ["classify", "in.parquet", "out.parquet", "--strategy", "clever"],
            2,
            "'clever' is not one of 'auto'",
        ),
        (["classify", "in.parquet", "out.parquet", "--labels", "none.toml"], 2, "cannot read label file none.toml"),
        (["classify", "in.parquet", "out.parquet", "--model", "no-such-model"], 7, "there is no model 'no-such-model'"),
        (["classify", "in.parquet", "out.parquet", "--seed", "-1"], 2, "-1 is not in the range"),
        (["classify", "in.parquet", "out.parquet", "--output-prefix", "\udcff"], 2, "--output-prefix '\\udcff' is not"),
        (["evaluate", "x" * 300, "--gold", "gold", "--json", "out.json"], 3, "File name too long"),
        (["fit", "in.parquet", "--gold", "gold", "--head", "new", "--calibrate"], 2, "No such option"),
        (["labels", "none.toml"], 2, "cannot read label file none.toml"),
    ],
)
def test_mistake_is_one_line_and_its_exit_code(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ticket-etl: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_unforeseen_error_is_one_line_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("ticket_etl.models.list_models", broken)
    assert run_command(["model", "list"]) == 1
    assert capsys.readouterr().err == "ticket-etl: error: unexpected KeyError: 'surprise' (--verbose shows where)\n"
