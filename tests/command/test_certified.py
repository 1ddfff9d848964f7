"""Night after night in bfloat16: certified, with a drift profile that is kept, and resumed to the same bytes."""

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import (
    assert_done,
    clean_environment,
    digest,
    finish,
    needs_bfloat16,
    read_report,
    rows_in,
    run_warm,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow


class Nights:
    """Runs on the same 1,500 tickets, with a cache folder of their own."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.folder = folder
        self.options = [*options, "--window-tickets", "150"]
        self.environment = clean_environment(TICKET_ETL_CACHE=str(folder / "cache"))
        texts = [f"{number} I was billed {'twice ' * (number % 9)}" for number in range(1500)]
        pq.write_table(pa.table({"text": texts}), folder / "in.parquet")

    def command(self, name: str, *more: str) -> list[object]:
        return ["classify", self.folder / "in.parquet", self.folder / name, *self.options, *more]

    def night(self, name: str, *more: str) -> dict[str, Any]:
        outcome = run_warm(*self.command(name, *more), environment=self.environment)
        assert_done(outcome)
        report = read_report(self.folder / name)
        assert ("certified" in outcome.err) == (report["certification"] is not None)
        return report

    def make_profile_wider(self) -> None:
        """Double what is kept, so that no drift of the next night is beyond it: chance would make some so."""
        (path,) = (self.folder / "cache" / "drift").glob("*.json")
        entry = json.loads(path.read_text())
        for name in ("bound", "drift_max"):
            entry["value"][name] *= 2
        path.write_text(json.dumps(entry))

    def labels(self, name: str) -> list[str]:
        labels: list[str] = pq.read_table(self.folder / name)["label"].to_pylist()
        return labels


@pytest.fixture
def nights(tmp_path: Path, quick: list[str]) -> Nights:
    return Nights(tmp_path, quick)


def test_first_night_measures_and_later_ones_confirm(nights: Nights) -> None:
    """With float32's labels each time."""
    nights.night("exact.parquet", "--dtype", "float32")
    first = nights.night("monday.parquet", "--dtype", "bfloat16")["certification"]
    nights.make_profile_wider()
    second = nights.night("tuesday.parquet", "--dtype", "bfloat16")["certification"]
    assert nights.labels("exact.parquet") == nights.labels("monday.parquet") == nights.labels("tuesday.parquet")
    assert first["profile"] is None
    assert first["sampled"] == 10 * 64
    assert first["verified"] == 10 * 31  # half of the sample, without the longest, which is in every sample
    assert second["profile"]["runs"] == 1
    assert second["bound"] == second["profile"]["bound"] >= 2 * first["bound"]
    assert second["sampled"] == 10 * 32
    assert second["verified"] == 10 * 31
    assert second["remaining_disagreement_rate_95"] == 3 / 310


def test_few_tickets_are_scored_in_float32_at_once(nights: Nights) -> None:
    """The scores are float32's own; the certification says so."""
    options = ["--window-tickets", "100"]
    nights.night("exact.parquet", "--dtype", "float32", *options)
    report = nights.night("small.parquet", "--dtype", "bfloat16", *options)
    assert pq.read_table(nights.folder / "exact.parquet").equals(pq.read_table(nights.folder / "small.parquet"))
    assert report["certification"]["scored_in_float32_at_once"] == report["rows"]["scored"]
    assert report["certification"]["remaining_disagreement_rate_95"] == 0.0
    assert report["machine"]["dtype"] == "bfloat16"


@needs_bfloat16
def test_killed_run_is_resumed_with_the_profile_it_began_with(nights: Nights) -> None:
    """Byte for byte, although a finished run changes what is kept."""
    nights.night("first.parquet", "--dtype", "bfloat16")
    process = start(*nights.command("killed.parquet", "--dtype", "bfloat16"), environment=nights.environment)
    journal = nights.folder / ".killed.parquet.journal"
    wait_for(lambda: process.poll() is not None or rows_in(journal) > 0)
    process.send_signal(signal.SIGKILL)
    finish(process)
    nights.night("whole.parquet", "--dtype", "bfloat16")
    assert nights.night("killed.parquet", "--dtype", "bfloat16")["rows"]["resumed"] > 0
    assert digest(nights.folder / "killed.parquet") == digest(nights.folder / "whole.parquet")
