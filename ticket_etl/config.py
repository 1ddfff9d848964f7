"""What a run was asked to do, as one frozen value; flags, environment and files are merged before it is made."""

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ticket_etl.errors import UsageError
from ticket_etl.paths import is_file

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda", "mps")
AUTO_BATCH_TOKENS = {"cpu": 2048}
AUTO_BATCH_TOKENS_ELSEWHERE = 32_768
"""Tokens a batch by device, where none are asked for: a CPU is busy with few, and keeps them in its caches."""
PROJECT_FILE = Path("ticket-etl.toml")


@dataclass(frozen=True, kw_only=True)
class ScoringConfig:
    """Everything that decides a label: shared by all commands that score.

    max_batch_tokens bounds what a batch holds in memory: padded rows with their copies of the prefix, or one packed
    row. None is for the device to decide.
    """

    input: str
    labels: Path | None = None
    head: Path | None = None
    text_columns: tuple[str, ...] = ()
    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    strategy: str = "auto"
    batch_tickets: int = 32
    max_batch_tokens: int | None = None
    window_tickets: int = 2048
    max_ticket_tokens: int = 2048
    certify: bool = True
    calibrate: bool = False
    bad_records: str = "stop"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class JobConfig(ScoringConfig):
    """The nightly job: scoring, and what becomes of the labels.

    min_score is a probability, min_margin log-odds to the runner-up: a label below either does not stand.
    """

    output: Path
    output_prefix: str = ""
    replace_columns: bool = False
    clobber: bool = True
    report: Path | None = None
    compare_report: Path | None = None
    cache: Path | None = None
    min_score: float | None = None
    min_margin: float | None = None
    fallback_label: str | None = None

    @property
    def report_path(self) -> Path:
        """Where the JSON report goes: `--report`, unless that is a page, else OUT.report.json."""
        if self.report is not None and not self.page_path:
            return self.report
        return self.output.with_name(self.output.name + ".report.json")

    @property
    def page_path(self) -> Path | None:
        """Where the report goes as a page, if `--report` names one."""
        return self.report if self.report is not None and self.report.suffix.lower() in (".html", ".htm") else None

    @property
    def rejects_path(self) -> Path:
        """Where quarantined records go: OUT.rejects.jsonl."""
        return self.output.with_name(self.output.name + ".rejects.jsonl")


def read_settings(path: Path | None) -> tuple[Path, dict[str, Any]]:
    """The keys and values of a configuration file: `path`, else `ticket-etl.toml` in the current folder if it is there.

    Raises:
        UsageError: the file cannot be read or is not TOML; the message names it.
    """
    source = path or PROJECT_FILE
    if path is None and not is_file(source):
        return source, {}
    try:
        return source, tomllib.loads(source.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot read configuration {source}: {os.strerror(error.errno or 0)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {source} is not valid TOML in UTF-8: {error}") from error
