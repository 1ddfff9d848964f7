"""Settings from a file, and the paths that follow from OUT."""

from pathlib import Path

import pytest

from ticket_etl.config import DEFAULT_STRATEGY, JobConfig, read_settings
from ticket_etl.errors import UsageError
from ticket_etl.strategies import STRATEGIES

KNOWN = {"model", "max_ticket_tokens", "strategy"}


def write(folder: Path, content: str | bytes, name: str = "settings.toml") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_settings(path, KNOWN)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_keys_with_dashes_or_underscores(tmp_path: Path) -> None:
    path = write(tmp_path, 'max-ticket-tokens = 512\nmodel = "m"\n')
    assert read_settings(path, KNOWN) == {"max_ticket_tokens": 512, "model": "m"}
    assert read_settings(write(tmp_path, "max_ticket_tokens = 7\n"), KNOWN) == {"max_ticket_tokens": 7}


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert read_settings(write(tmp_path, b'\xef\xbb\xbfmodel = "m"\n'), KNOWN) == {"model": "m"}


def test_file_of_the_current_folder_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be there; a file that is asked for takes its place."""
    monkeypatch.chdir(tmp_path)
    assert read_settings(None, KNOWN) == {}
    write(tmp_path, 'model = "here"\n', "ticket-etl.toml")
    assert read_settings(None, KNOWN) == {"model": "here"}
    assert read_settings(write(tmp_path, 'strategy = "naive"\n'), KNOWN) == {"strategy": "naive"}


def test_missing_file_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path / "none.toml")
    assert str(tmp_path / "none.toml") in message
    assert "No such file" in message


def test_folder_is_refused(tmp_path: Path) -> None:
    assert f"cannot read configuration {tmp_path}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("model: m\n", ["not valid TOML", "line 1"]),
        ('model = "a"\nmodel = "b"\n', ["not valid TOML", "line 2"]),
        ('model = "\u00e9"\n'.encode("latin-1"), ["not valid TOML in UTF-8"]),
        ('modle = "m"\n', ["unknown key 'modle'"]),
        ('[classify]\nmodel = "m"\n', ["unknown key 'classify'"]),
    ],
)
def test_refusals_say_what_and_where(tmp_path: Path, content: str | bytes, says: list[str]) -> None:
    path = write(tmp_path, content)
    message = refusal(path)
    for part in [str(path), *says]:
        assert part in message


def test_reports_and_rejects_lie_beside_the_output() -> None:
    config = JobConfig(input="in.parquet", output=Path("night/out.parquet"))
    assert config.report_path == Path("night/out.parquet.report.json")
    assert config.rejects_path == Path("night/out.parquet.rejects.jsonl")
    assert JobConfig(input="-", output=Path("o"), report=Path("r.json")).report_path == Path("r.json")


def test_default_strategy_is_one_of_the_strategies() -> None:
    assert DEFAULT_STRATEGY in STRATEGIES
