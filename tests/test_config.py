"""Settings from a file, and the paths that follow from OUT."""

from pathlib import Path

import pytest

from ticket_etl.cli import cli, run_command
from ticket_etl.config import JobConfig, read_settings


def write(folder: Path, content: str | bytes, name: str = "settings.toml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run_command(["classify", "in.parquet", "out.parquet", "--config", str(path)]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def configured(path: Path, *arguments: str) -> dict[str, object]:
    """The options of `classify` as they come out of a configuration file and flags."""
    with cli.make_context("ticket-etl", ["classify"]) as top:
        command = cli.commands["classify"]
        context = command.make_context("classify", ["in", "out", "--config", str(path), *arguments], parent=top)
        return context.params


def test_keys_are_option_names(tmp_path: Path) -> None:
    """With dashes or underscores; a single value for an option that repeats; `no-` for the opposite of a switch."""
    content = 'max-ticket-tokens = 512\nwindow_tickets = 7\ntext-column = "my text"\nno-clobber = true\n'
    options = configured(write(tmp_path, content))
    assert (options["max_ticket_tokens"], options["window_tickets"]) == (512, 7)
    assert options["text_columns"] == ("my text",)
    assert options["clobber"] is False
    assert configured(write(tmp_path, 'text_column = ["a", "b c"]\n'))["text_columns"] == ("a", "b c")


def test_flag_wins_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "seed = 1\n")
    assert configured(path)["seed"] == 1
    monkeypatch.setenv("TICKET_ETL_SEED", "2")
    assert configured(path)["seed"] == 2
    assert configured(path, "--seed", "3")["seed"] == 3


def test_column_in_the_environment_may_hold_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name a line."""
    monkeypatch.setenv("TICKET_ETL_TEXT_COLUMN", "full text\nsubject")
    assert configured(write(tmp_path, ""))["text_columns"] == ("full text", "subject")


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert read_settings(write(tmp_path, b'\xef\xbb\xbfmodel = "m"\n'))[1] == {"model": "m"}


def test_file_of_the_current_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be there; a file that is asked for takes its place."""
    monkeypatch.chdir(tmp_path)
    assert read_settings(None)[1] == {}
    write(tmp_path, 'model = "here"\n', "ticket-etl.toml")
    assert read_settings(None)[1] == {"model": "here"}
    assert read_settings(write(tmp_path, 'strategy = "naive"\n'))[1] == {"strategy": "naive"}


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(tmp_path / "none.toml", capsys)
    assert str(tmp_path / "none.toml") in message
    assert "No such file" in message


def test_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"cannot read configuration {tmp_path}" in refusal(tmp_path, capsys)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("model: m\n", ["not valid TOML", "line 1"]),
        ('model = "a"\nmodel = "b"\n', ["not valid TOML", "line 2"]),
        ('model = "\u00e9"\n'.encode("latin-1"), ["not valid TOML in UTF-8"]),
        ('modle = "m"\n', ["unknown key 'modle'"]),
        ('[classify]\nmodel = "m"\n', ["unknown key 'classify'"]),
        ('model = ["a", "b"]\n', ["model must be a single value"]),
        ("quiet = 1\n", ["quiet must be true or false"]),
        ("model = true\n", ["model cannot be true or false"]),
    ],
)
def test_refusals_say_what_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | bytes, says: list[str]
) -> None:
    path = write(tmp_path, content)
    message = refusal(path, capsys)
    for part in [str(path), *says]:
        assert part in message


def test_reports_and_rejects_lie_beside_the_output() -> None:
    config = JobConfig(input="in.parquet", output=Path("night/out.parquet"))
    assert config.report_path == Path("night/out.parquet.report.json")
    assert config.rejects_path == Path("night/out.parquet.rejects.jsonl")
    assert JobConfig(input="-", output=Path("o"), report=Path("r.json")).report_path == Path("r.json")


@pytest.mark.parametrize(
    "line", ["window-tickets = 1.5", 'seed = "many"', 'strategy = "clever"', "max-batch-tokens = 0"]
)
def test_values_are_checked_like_those_of_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert "Invalid value for '--" in refusal(write(tmp_path, line + "\n"), capsys)
