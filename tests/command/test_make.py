"""Make: a failing run fails again, and leaves no target that the next `make` would take for done."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command.support import COMMAND, SOURCE_TREE, clean_environment, names_in

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

MAKEFILE = """\
labelled.parquet: tickets.parquet
\t{command} classify $< $@ --model {model} --labels {labels} --max-ticket-tokens 64

labelled.jsonl: tickets.jsonl
\t{command} classify $< $@ --model {model} --labels {labels} --bad-records quarantine || test $$? -eq 5
"""


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run make in a folder."""
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env=clean_environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def folder(tmp_path: Path, setup_folder: Path) -> Path:
    """A folder with a Makefile as a user would write it."""
    model, labels = setup_folder / "model", setup_folder / "labels.toml"
    (tmp_path / "Makefile").write_text(MAKEFILE.format(command=COMMAND, model=model, labels=labels), encoding="utf-8")
    return tmp_path


def test_failing_input_fails_twice(folder: Path) -> None:
    """A damaged input: make fails, and fails again; the target is not there."""
    (folder / "tickets.parquet").write_bytes(b"PAR1 not really PAR1")
    for _ in range(2):
        outcome = make(folder)
        assert outcome.returncode == 2
        assert "ticket-etl: error:" in outcome.stderr
        assert "Error 3" in outcome.stderr
        assert names_in(folder) == {"Makefile", "tickets.parquet"}


@pytest.mark.slow
def test_failing_input_keeps_the_old_target(folder: Path) -> None:
    """An older target is still there, as old as it was, after a run that failed: make tries again."""
    (folder / "labelled.parquet").write_bytes(b"yesterday's output")
    os.utime(folder / "labelled.parquet", (1, 1))
    (folder / "tickets.parquet").write_bytes(b"PAR1 not really PAR1")
    for _ in range(2):
        assert make(folder).returncode == 2
        assert (folder / "labelled.parquet").read_bytes() == b"yesterday's output"


@pytest.mark.slow
def test_repaired_input_is_made_once(folder: Path, tickets: Path) -> None:
    """With a good input make succeeds, and has nothing to do the second time."""
    shutil.copy(tickets, folder / "tickets.parquet")
    assert make(folder).returncode == 0
    again = make(folder)
    assert again.returncode == 0
    assert "up to date" in again.stdout


@pytest.mark.slow
def test_quarantined_records_can_be_accepted(folder: Path) -> None:
    """Exit code 5 is a complete OUT: with the README's rule make keeps it, and is done."""
    (folder / "tickets.jsonl").write_text('{"text": "refund please"}\nno record\n', encoding="utf-8")
    assert make(folder, "labelled.jsonl").returncode == 0
    assert len((folder / "labelled.jsonl").read_text(encoding="utf-8").splitlines()) == 1
    assert "up to date" in make(folder, "labelled.jsonl").stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project's own Makefile and sample data, with an environment that is installed already."""
    shutil.copy(SOURCE_TREE / "Makefile", tmp_path)
    shutil.copytree(SOURCE_TREE / "sample_data", tmp_path / "sample_data")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(SOURCE_TREE / name, tmp_path)
        os.utime(tmp_path / name, (1, 1))
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "ticket-etl").symlink_to(COMMAND)
    (tmp_path / ".venv" / "installed").touch()
    return tmp_path


def test_project_makefile_fails_twice(project: Path, setup_folder: Path) -> None:
    """`make run` over damaged sample data fails each time and leaves nothing in build/."""
    (project / "sample_data" / "tickets.parquet").write_bytes(b"PAR1 not really PAR1")
    for _ in range(2):
        outcome = make(project, "run", TICKET_ETL_MODEL=str(setup_folder / "model"))
        assert outcome.returncode == 2
        assert "Error 3" in outcome.stderr
        assert "labelled tickets are in" not in outcome.stdout
        assert names_in(project / "build") == set()


@pytest.mark.slow
def test_project_makefile_runs_from_a_plain_make(project: Path, setup_folder: Path) -> None:
    """`make run` labels the sample, says where, and does no work the second time."""
    settings = {"TICKET_ETL_MODEL": str(setup_folder / "model"), "TICKET_ETL_MAX_TICKET_TOKENS": "32"}
    for _ in range(2):
        outcome = make(project, "run", **settings)
        assert outcome.returncode == 0, outcome.stderr
        assert "labelled tickets are in build/labelled.parquet" in outcome.stdout
    assert "classify" not in outcome.stdout
    assert names_in(project / "build") == {"labelled.parquet", "labelled.parquet.report.json"}
