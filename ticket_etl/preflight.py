"""The cheap checks, made before any data is read and without loading torch."""

import logging
import math
import os
import stat
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ticket_etl.config import JobConfig, ScoringConfig
from ticket_etl.errors import OutputError, UsageError
from ticket_etl.head import Head, load_head
from ticket_etl.journal import journal_path
from ticket_etl.label_drift import EarlierRun, load_earlier_run
from ticket_etl.labels import LabelSet, load_labels
from ticket_etl.models import ModelFolder, default_model, find_model
from ticket_etl.paths import is_file, is_folder
from ticket_etl.strategies import STRATEGIES
from ticket_etl.verdicts import Abstention

log = logging.getLogger("ticket_etl")


@dataclass(frozen=True)
class Request:
    """What a command is to score with."""

    labels: LabelSet
    folder: ModelFolder
    head: Head | None


def read_request(config: ScoringConfig) -> Request:
    """Read the labels and the head, and find the model.

    Raises:
        UsageError: the label file, the head's file or the strategy's name is wrong.
        ModelError: the model is not on this machine.
    """
    if config.strategy not in ("auto", *STRATEGIES):
        raise UsageError(f"unknown strategy {config.strategy!r}; known are auto, {', '.join(STRATEGIES)}")
    labels = load_labels(config.labels)
    head = None if config.head is None else load_head(config.head)
    return Request(labels, find_model(config.model or default_model()), head)


def read_abstention(config: JobConfig, head: Head | None = None) -> Abstention:
    """From where on labels do not stand, as the configuration has it; else as the head, once read, has learned it.

    Raises:
        UsageError: a threshold that is no probability or no log-odds, or a fallback label that cannot be written.
    """
    learned = head.min_score if head is not None and config.min_margin is None else None
    score = config.min_score if config.min_score is not None else learned or 0.0
    margin = config.min_margin or 0.0
    if not 0.0 <= score <= 1.0:
        raise UsageError(f"--min-score {score} is not a probability; give a number from 0 to 1")
    if not 0.0 <= margin < math.inf:
        raise UsageError(f"--min-margin {margin} is not a distance in log-odds; give a number from 0 up")
    fallback = config.fallback_label
    if fallback is not None:
        if not fallback.strip() or fallback != fallback.strip():
            raise UsageError(f"--fallback-label {fallback!r} is blank or has white space at its ends; give a name")
        if not score and not margin and (head is not None or config.head is None):
            raise UsageError("--fallback-label is for uncertain labels; set --min-score or --min-margin too")
        _check_utf8("--fallback-label", fallback)
    return Abstention(score, margin, fallback)


def _check_utf8(option: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{option} {value!r} is not UTF-8; give a name in UTF-8") from error


def read_earlier_run(config: JobConfig) -> EarlierRun | None:
    """The earlier run that this one is compared with, if one is named.

    It may be the report that this run is going to replace: it is read now. On a job's first night there is none yet.

    Raises:
        UsageError: there is no such file, or it is not a report.
    """
    earlier = config.compare_report
    if earlier is not None and not is_file(earlier) and _identity(earlier) == _identity(config.report_path):
        log.info("nothing to compare with yet: %s is this run's own report, and its first", earlier)
        return None
    return None if earlier is None else load_earlier_run(earlier)


def check_paths(config: JobConfig) -> None:
    """Make sure that every file the run writes can be written, and is none of the others or of those it reads.

    Raises:
        UsageError: two of the paths are one file, in whatever spelling.
        OutputError: a path cannot be written; the message names it.
    """
    if not config.output.name or config.output.name == "..":
        raise UsageError(f"OUT {str(config.output)!r} is not a file name; name a .parquet or .jsonl file")
    _check_utf8("--output-prefix", config.output_prefix)
    written = {
        "OUT": config.output,
        "its journal": journal_path(config.output),
        "the report": config.report_path,
        "the rejects file": config.rejects_path,
    }
    if config.page_path is not None:
        if find_spec("matplotlib") is None:
            raise UsageError("a report as a page needs matplotlib: pip install 'ticket-etl[report]', or name a .json")
        written["the report's page"] = config.page_path
    seen = _read_files(config)
    for role, path in written.items():
        if role != "OUT":  # `check_output` knows more of it
            _check_no_part(role, path, config)
        other = seen.setdefault(_identity(path), role)
        if other != role:
            raise UsageError(f"{role} and {other} are the same file, {path}; choose another")
        _check_writable(role, path)
    if config.cache is not None:
        if (twin := seen.get(_identity(config.cache))) is not None:
            raise UsageError(f"--cache and {twin} are the same file, {config.cache}; choose another")
        if not is_folder(config.cache.absolute().parent):  # a cache that cannot be written is no reason to refuse
            raise UsageError(f"the folder of --cache {config.cache} does not exist; create it")


def check_result_path(role: str, path: Path, config: ScoringConfig) -> None:
    """Make sure that a command's result can be written to a file, and replaces none that the command reads.

    Raises:
        UsageError: it is a file that is read.
        OutputError: it cannot be written.
    """
    if (other := _read_files(config).get(_identity(path))) is not None:
        raise UsageError(f"{role} and {other} are the same file, {path}; choose another")
    _check_no_part(role, path, config)
    _check_writable(role, path)


def _read_files(config: ScoringConfig) -> dict[object, str]:
    """What a command reads, by identity, with what the user calls it."""
    named = {
        "IN": None if config.input == "-" else Path(config.input),
        "--labels": config.labels,
        "--head": config.head,
    }
    return {_identity(path): role for role, path in named.items() if path is not None}


def _check_no_part(role: str, path: Path, config: ScoringConfig) -> None:
    """A result must not replace, or become, a part of a folder that is read; names with `_` or `.` are none."""
    folder = Path(config.input)
    inside = config.input != "-" and is_folder(folder) and _identity(path.absolute().parent) == _identity(folder)
    if inside and not path.name.startswith(("_", ".")):
        raise UsageError(f"{role} {path} would be a part of IN, the folder {config.input}; choose another folder")


def _identity(path: Path) -> object:
    """What stays the same in every spelling of a path: the file itself, or where it would be."""
    try:
        status = path.stat()
        return (status.st_dev, status.st_ino)
    except (OSError, ValueError):
        return os.path.realpath(path)


def _check_writable(role: str, path: Path) -> None:
    target = Path(os.path.realpath(path))
    try:
        if target.is_symlink():
            raise OutputError(f"{role} {path} is a symbolic link that leads back to itself; remove it")
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise OutputError(f"{role} {path} exists and is not a regular file; choose another")
        if not target.parent.is_dir():
            raise OutputError(f"the folder of {role}, {target.parent}, does not exist; create it")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"{role} {path} cannot be written ({reason}); check its folder and permissions") from error
