"""The cheap checks of paths: nothing that is read is written over, and no result becomes a part of the input."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ticket_etl.cli import cli
from ticket_etl.config import JobConfig, ScoringConfig
from ticket_etl.errors import UsageError
from ticket_etl.preflight import check_paths, check_result_path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("in/a.jsonl", "labels.toml", "live.head"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    return tmp_path


@pytest.mark.parametrize("name", ["in/a.jsonl", "labels.toml", "live.head", "in/../live.head", "in/new.json"])
def test_results_replace_nothing_that_is_read(folder: Path, name: str) -> None:
    config = ScoringConfig(input=str(folder / "in"), labels=folder / "labels.toml", head=folder / "live.head")
    with pytest.raises(UsageError, match=r"same file|would be a part of IN"):
        check_result_path("--json", folder / name, config)
    with pytest.raises(UsageError, match=r"same file|would be a part of IN"):
        check_paths(JobConfig(**vars(config), output=folder / "out.jsonl", report=folder / name))


def test_results_beside_the_input_are_fine(folder: Path) -> None:
    config = ScoringConfig(input=str(folder / "in"))
    for name in ("result.json", "in/_result.json"):
        check_result_path("--json", folder / name, config)
        check_paths(JobConfig(**vars(config), output=folder / "out.jsonl", report=folder / name))


def test_bench_refuses_before_it_runs(folder: Path) -> None:
    tickets = folder / "in" / "a.jsonl"
    before = tickets.read_bytes()
    refused = CliRunner().invoke(cli, ["bench", str(tickets), "--json", str(tickets), "--model", "none"])
    assert isinstance(refused.exception, UsageError)
    assert tickets.read_bytes() == before
