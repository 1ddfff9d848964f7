"""A disk that is full, closed or broken: the old OUT stays as it was, the exit code says so, nothing stray is left."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import (
    SOURCE_TREE,
    Outcome,
    assert_done,
    assert_lossless,
    assert_refused,
    clean_environment,
    digest,
    finish,
    names_in,
    read_report,
    rows_in,
    run,
    run_warm,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow

OLD = b"yesterday's output"
OLD_REPORT = b"{}"
PAYLOAD_BYTES = 300_000


def write_input(path: Path) -> Path:
    """A few tickets with a column that does not compress."""
    texts = ["I was billed twice", "cannot log in", "error 500 on export"]
    payload = [os.urandom(PAYLOAD_BYTES // 3) for _ in texts]
    pq.write_table(pa.table({"id": [1, 2, 3], "text": texts, "payload": payload}), path)
    return path


# --- one failing call, in turn ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """The n-th call of a kind fails, in a run that writes this output."""

    kind: str
    nth: int = 1
    out: str = "out.parquet"
    target: str = "OUT"

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.nth}-{self.out}"


FAULTS = [
    Fault("fsync-eio"),
    Fault("fsync-eio", out="out.jsonl"),
    Fault("fsync-eio", out="out.jsonl.gz"),
    Fault("fsync-eio", out="out.jsonl.zst"),
    Fault("fsync-eio", 2),  # of the folder, after the rename
    Fault("fsync-enospc"),
    Fault("fsync-loses"),
    Fault("fsync-loses", out="out.jsonl"),
    Fault("fsync-loses", out="out.jsonl.gz"),
    Fault("fsync-loses", out="out.jsonl.zst"),
    Fault("rename-eio"),
    Fault("rename-enospc", out="out.jsonl"),
    Fault("rename-eacces"),
    Fault("close-eio"),
    Fault("close-eio", out="out.jsonl.gz"),
    Fault("fsync-eio", 3, target="report"),
    Fault("fsync-eio", 4, target="report"),
    Fault("rename-enospc", 2, target="report"),
    Fault("close-eio", 2, target="report"),
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, quick: list[str]) -> dict[Fault, tuple[Path, Outcome]]:
    """Each fault on a fresh folder; one process, so that torch loads once."""
    root = tmp_path_factory.mktemp("faults")
    source = write_input(root / "in.parquet")
    plan: list[dict[str, Any]] = []
    for fault in FAULTS:
        folder = root / fault.name
        folder.mkdir()
        (folder / fault.out).write_bytes(OLD)
        (folder / f"{fault.out}.report.json").write_bytes(OLD_REPORT)
        plan.append({"fault": fault.kind, "nth": fault.nth, "arguments": arguments(source, folder / fault.out, quick)})
    (root / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "tests.command.faulty", str(root / "plan.json")],
        cwd=SOURCE_TREE,
        env=clean_environment(),
        capture_output=True,
        check=True,
        timeout=300,
    )
    results = [json.loads(line) for line in process.stdout.splitlines()]
    return {
        fault: (root / fault.name, Outcome(result["code"], result["out"], result["err"]))
        for fault, result in zip(FAULTS, results, strict=True)
    }


def arguments(source: Path, out: Path, quick: list[str]) -> list[str]:
    return ["classify", str(source), str(out), *quick]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_failing_call_leaves_the_old_file(fault: Fault, outcomes: dict[Fault, Any]) -> None:
    """Whichever call fails: exit 4, one line, what was there before is there, and no temporary file."""
    folder, outcome = outcomes[fault]
    lines = outcome.err.rstrip("\n").split("\n")
    assert outcome.code == 4, outcome.err
    assert outcome.out == ""
    assert lines[-1].startswith(f"ticket-etl: error: {folder}/")
    assert "Traceback" not in outcome.err
    out, report = folder / fault.out, folder / f"{fault.out}.report.json"
    assert report.read_bytes() == OLD_REPORT
    if fault.target == "OUT":
        assert out.read_bytes() == OLD
    else:
        assert pq.read_table(out).num_rows == 3
        assert "is complete, but not its report" in lines[-1]
    # The journal stays, the same command has only to write again what it tells of.
    assert names_in(folder) == {f".{fault.out}.journal", out.name, report.name}


# --- real limits -----------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with IN, and a folder with yesterday's OUT."""
    write_input(tmp_path / "in.parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "out.parquet").write_bytes(OLD)
    return tmp_path


@pytest.mark.parametrize("kibibytes", [2, 64, 290])
def test_file_size_limit(kibibytes: int, job: Path, quick: list[str]) -> None:
    """`ulimit -f` below what OUT, or even the journal, takes: exit 4; without the limit the same command succeeds."""
    out = job / "out" / "out.parquet"
    limit = kibibytes * 1024
    outcome = run(
        "classify",
        job / "in.parquet",
        out,
        *quick,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert outcome.code == 4, outcome.err
    assert outcome.error_line.startswith("ticket-etl: error: ")
    assert out.read_bytes() == OLD
    assert names_in(job / "out") <= {"out.parquet", ".out.parquet.journal"}
    assert_done(run_warm("classify", job / "in.parquet", out, *quick))
    assert_lossless(job / "in.parquet", out)
    assert names_in(job / "out") == {"out.parquet", "out.parquet.report.json"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(small_disk: Path, job: Path, quick: list[str]) -> None:
    """A disk without room for OUT: exit 4, the old OUT is there; with room, the same command goes on from there."""
    out = small_disk / "out.parquet"
    out.write_bytes(OLD)
    outcome = run_warm("classify", job / "in.parquet", out, *quick)
    assert outcome.code == 4, outcome.err
    assert "space" in outcome.error_line
    assert out.read_bytes() == OLD
    assert names_in(small_disk) <= {"out.parquet", ".out.parquet.journal"}
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert_done(run_warm("classify", job / "in.parquet", out, *quick))
    assert_lossless(job / "in.parquet", out)
    assert read_report(out)["rows"]["resumed"] == 3
    assert names_in(small_disk) == {"out.parquet", "out.parquet.report.json"}


def test_disk_full_to_the_last_byte(small_disk: Path, job: Path, quick: list[str]) -> None:
    """No room for the journal either: exit 4 in one line, and nothing is left of the attempt."""
    out = small_disk / "out.parquet"
    out.write_bytes(OLD)
    with (small_disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            pass
    assert_refused(run("classify", job / "in.parquet", out, *quick), 4)
    assert out.read_bytes() == OLD
    assert names_in(small_disk) == {"out.parquet", "filler"}


def test_folder_that_cannot_be_written(job: Path, quick: list[str], subject: dict[str, Any]) -> None:
    """A read-only folder is refused before the model loads, and stays as it was."""
    store = job / "out"
    store.chmod(0o555)
    outcome = run("classify", job / "in.parquet", store / "out.parquet", *quick, **subject)
    store.chmod(0o755)
    assert_refused(outcome, 4, "out.parquet")
    assert (store / "out.parquet").read_bytes() == OLD
    assert names_in(store) == {"out.parquet"}


def test_input_without_permission(job: Path, quick: list[str], subject: dict[str, Any]) -> None:
    """An input that may not be read is exit 3, and OUT's folder stays as it was."""
    (job / "in.parquet").chmod(0o000)
    outcome = run("classify", job / "in.parquet", job / "out" / "out.parquet", *quick, **subject)
    assert_refused(outcome, 3, "in.parquet", "Permission denied")
    assert names_in(job / "out") == {"out.parquet"}


def test_folder_that_can_be_written_but_not_listed(job: Path, quick: list[str], subject: dict[str, Any]) -> None:
    """A drop box (mode 0333) takes OUT; what cannot be listed need not be."""
    store = job / "out"
    store.chmod(0o333)
    outcome = run("classify", job / "in.parquet", store / "out.parquet", *quick, **subject)
    store.chmod(0o755)
    assert_done(outcome)
    assert names_in(store) == {"out.parquet", "out.parquet.report.json"}


def test_cache_that_cannot_be_written(job: Path, quick: list[str], subject: dict[str, Any]) -> None:
    """A label cache in a read-only folder costs its benefit only: one line of warning, exit 0."""
    shelf = job / "shelf"
    shelf.mkdir(mode=0o555)
    out = job / "out" / "out.parquet"
    outcome = run("classify", job / "in.parquet", out, *quick, "--cache", shelf / "labels.sqlite", **subject)
    assert_done(outcome)
    assert sum("label cache" in line for line in outcome.err.splitlines()) == 1
    assert names_in(shelf) == set()


def test_file_that_cannot_be_replaced(job: Path, quick: list[str]) -> None:
    """An immutable OUT in a writable folder: exit 4, and it is still there."""
    out = job / "out" / "out.parquet"
    if not shutil.which("chattr") or subprocess.run(["chattr", "+i", str(out)], capture_output=True).returncode:
        pytest.skip("no immutable files here")
    try:
        outcome = run_warm("classify", job / "in.parquet", out, *quick)
    finally:
        subprocess.run(["chattr", "-i", str(out)], check=True)
    assert outcome.code == 4, outcome.err
    assert out.read_bytes() == OLD
    assert names_in(job / "out") <= {"out.parquet", ".out.parquet.journal"}


def test_read_only_file_in_a_writable_folder(job: Path, quick: list[str]) -> None:
    """Replacing needs the folder's permission only; the mode of the replaced file is kept."""
    out = job / "out" / "out.parquet"
    out.chmod(0o440)
    assert_done(run_warm("classify", job / "in.parquet", out, *quick))
    assert_lossless(job / "in.parquet", out)
    assert out.stat().st_mode & 0o777 == 0o440


def test_input_that_changes_during_the_run(job: Path, quick: list[str]) -> None:
    """An input that is written over in place is noticed: exit 3, old OUT; nothing half-labelled appears."""
    source, out = job / "in.jsonl", job / "out" / "out.parquet"
    with source.open("w", encoding="utf-8") as file:
        for number in range(3000):
            file.write(json.dumps({"id": number, "text": f"{number} I was billed twice"}) + "\n")
    process = start("classify", source, out, *quick, "--window-tickets", 8)
    journal = job / "out" / ".out.parquet.journal"
    wait_for(lambda: process.poll() is not None or rows_in(journal) > 0)
    before = digest(source)
    with source.open("r+b") as file:
        file.write(b'{"id":99,"text":"0')
    assert digest(source) != before
    outcome = finish(process)
    assert outcome.code == 3, outcome.err
    assert "changed while it was being read" in outcome.error_line
    assert out.read_bytes() == OLD
    assert names_in(job / "out") <= {"out.parquet", ".out.parquet.journal"}
