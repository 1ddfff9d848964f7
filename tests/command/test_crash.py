"""A job that is killed at any moment and started again writes what an undisturbed one writes."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from tests.command.support import (
    Outcome,
    assert_done,
    assert_refused,
    assert_tidy_streams,
    chosen,
    digest,
    finish,
    in_parallel,
    names_in,
    read_report,
    rows_in,
    run,
    run_warm,
    start,
    wait_for,
    write_labels,
)
from tests.tiny import CORPUS, save_tiny_model
from ticket_etl.verdicts import FAILED, blank_verdicts

pytestmark = pytest.mark.slow

WINDOW = 8
OLD_OUT = b"yesterday's output"
LEFT_AT_THE_END = {"in.parquet", "out.parquet", "out.parquet.report.json", "labels.toml"}


@dataclass
class Job:
    """One command line over a folder of its own, and what it writes when nothing disturbs it."""

    folder: Path
    arguments: list[str]
    rows: int
    seconds: float = 0.0
    startup: float = 0.0
    expected: str = ""

    @property
    def out(self) -> Path:
        return self.folder / "out.parquet"

    @property
    def journal(self) -> Path:
        return self.folder / ".out.parquet.journal"

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        return start("classify", *self.arguments, *more)

    def run(self, *more: str) -> Outcome:
        return run_warm("classify", *self.arguments, *more)

    def copy(self, folder: Path) -> "Job":
        """The same job over a copy of its folder."""
        shutil.copytree(self.folder, folder)
        moved = [argument.replace(str(self.folder), str(folder)) for argument in self.arguments]
        return Job(folder, moved, self.rows, self.seconds, self.startup, self.expected)


def make_job(folder: Path, rows: int, *, text: Callable[[int], str] | None = None, payload: int = 0) -> Job:
    """A job of many small windows over texts of all lengths, a third of them repeats."""
    folder.mkdir()
    model = save_tiny_model(folder.with_name("model"))  # copies of the folder share it
    write_labels(folder / "labels.toml", "billing", "bug", "login")
    choose = random.Random(5)
    words = " ".join(CORPUS).split()
    texts: list[str] = []
    for number in range(rows):
        fresh = f"{number} " + " ".join(choose.choices(words, k=choose.choice([2, 5, 9, 60])))
        texts.append(choose.choice(texts) if texts and choose.random() < 0.3 else text(number) if text else fresh)
    columns = {"id": pa.array(range(rows), pa.int64()), "text": texts}
    if payload:
        columns["payload"] = [choose.randbytes(payload) for _ in texts]
    pq.write_table(pa.table(columns), folder / "in.parquet")
    arguments = [folder / "in.parquet", folder / "out.parquet", "--model", model]
    arguments += ["--labels", folder / "labels.toml", "--max-ticket-tokens", "64", "--window-tickets", WINDOW]
    return Job(folder, [str(argument) for argument in arguments], rows)


def stop_while_scoring(job: Job) -> None:
    """Start the job, and ask it to stop a moment after it has begun to record."""
    process = job.start()
    before = job.journal.stat().st_mtime_ns if job.journal.exists() else 0
    wait_for(lambda: process.poll() is not None or (rows_in(job.journal) > 0 and changed(job.journal, before)))
    process.send_signal(signal.SIGTERM)
    outcome = finish(process)
    assert outcome.code == 143, "the job was done before it could be stopped"
    assert_tidy_streams(outcome)


def changed(path: Path, before: int) -> bool:
    """Whether a file was written since."""
    try:
        return path.stat().st_mtime_ns != before
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The long job, run once without disturbance."""
    job = make_job(tmp_path_factory.mktemp("crash") / "job", rows=1600, payload=8_000)
    began = time.monotonic()
    process = job.start()
    wait_for(lambda: process.poll() is not None or rows_in(job.journal) > 0)
    job.startup = time.monotonic() - began
    assert_done(finish(process))
    job.seconds = time.monotonic() - began
    job.expected = digest(job.out)
    assert names_in(job.folder) == LEFT_AT_THE_END
    job.out.with_name("out.parquet.report.json").unlink()
    job.out.write_bytes(OLD_OUT)
    return job


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A shorter job, killed while it scores; tests copy its folder."""
    job = make_job(tmp_path_factory.mktemp("interrupted") / "job", rows=1200)
    assert_done(job.run())
    job.expected = digest(job.out)
    job.out.with_name("out.parquet.report.json").unlink()
    job.out.write_bytes(OLD_OUT)
    stop_while_scoring(job)
    assert digest(job.out) != job.expected
    return job


SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
# Two kills a job. Start-up is most of a short run's time, and writing hardly any: each is aimed at on its own.
STAGES = [("start", "score"), ("start", "score"), ("score", "start"), ("score", "write"), ("score", "write")]
JOBS = int(os.environ.get("TICKET_ETL_CRASH_JOBS", len(STAGES)))
"""Jobs a signal, two kills each: all make thirty kills; fewer where time is short."""


def kill_in(stage: str, job: Job, finished: Job, signum: signal.Signals, choose: random.Random) -> str:
    """Start the job, kill it at a random moment of a stage, check what a killed run has to leave; say what happened."""
    process = job.start()
    if stage == "start":
        moment = choose.uniform(0.05, finished.startup)
    elif stage == "score":
        before = job.journal.stat().st_mtime_ns if job.journal.exists() else 0
        wait_for(lambda: process.poll() is not None or (rows_in(job.journal) > 0 and changed(job.journal, before)))
        moment = choose.uniform(0.0, 0.6 * (finished.seconds - finished.startup))
    else:
        wait_for(lambda: process.poll() is not None or any(job.folder.glob(".out.parquet.*.tmp")))
        moment = choose.uniform(0.0, 0.1)
    end = time.monotonic() + moment
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signum)
    outcome = finish(process)
    # Until Python has started, a signal ends the process by itself; one that comes after the work changes nothing.
    by_program = {128 + signum} if signum != signal.SIGKILL else set()
    assert outcome.code in {0, -signum} | by_program, outcome.err
    assert outcome.out == ""
    if outcome.code in by_program:
        assert_tidy_streams(outcome)
        assert outcome.error_line == (
            f"ticket-etl: error: stopped by {signum.name}; run the same command again to resume"
        )
    assert job.out.read_bytes() == OLD_OUT or digest(job.out) == finished.expected
    return f"{signum.name} {moment:.2f} s into {stage}: exit {outcome.code}"


def kill_twice_and_resume(job: Job, stages: tuple[str, str], finished: Job, signum: signal.Signals, seed: int) -> str:
    """Kill the job twice, resume it, and compare with the undisturbed run."""
    choose = random.Random(seed)
    lines = [kill_in(stage, job, finished, signum, choose) for stage in stages]
    saved = max(0, rows_in(job.journal))
    began = time.monotonic()
    outcome = job.run()
    seconds = time.monotonic() - began
    assert_done(outcome)
    assert digest(job.out) == finished.expected
    report = read_report(job.out)
    assert report["rows"]["resumed"] == saved
    assert (f"resuming: {saved} of {job.rows} rows" in outcome.err) == (saved > 0)
    assert names_in(job.folder) == LEFT_AT_THE_END
    shutil.rmtree(job.folder)
    loading = report["seconds"]["load"]
    lines.append(
        f"  resumed {saved} of {job.rows} rows, done in {seconds:.1f} s"
        f" ({report['seconds']['run'] - loading:.1f} s without loading the model)"
    )
    return "\n".join(lines)


@pytest.mark.parametrize("signum", SIGNALS, ids=[s.name for s in SIGNALS])
def test_killed_again_and_again_and_resumed(
    signum: signal.Signals, finished: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills at random moments, two a job: OUT is untouched until it is whole, then equals the undisturbed one."""

    def disturb(number: int) -> str:
        job = finished.copy(tmp_path / f"job{number}")
        return kill_twice_and_resume(job, STAGES[number], finished, signum, seed=10 * signum + number)

    lines = in_parallel(disturb, range(JOBS)).values()
    with capsys.disabled():
        print(f"\nundisturbed: {finished.seconds:.1f} s, {finished.startup:.1f} s of it start-up\n" + "\n".join(lines))


def test_stopped_by_request_keeps_what_is_done(interrupted: Job, tmp_path: Path) -> None:
    """SIGTERM while scoring: exit 143, one line, old OUT, and a journal that the next run goes on from."""
    job = interrupted.copy(tmp_path / "job")
    saved = rows_in(job.journal)
    process = job.start()
    assert process.stderr is not None
    assert process.stderr.readline().decode().startswith(f"ticket-etl: resuming: {saved} of 1200 rows")
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    outcome = finish(process)
    assert outcome.code == 143
    assert_tidy_streams(outcome)
    assert outcome.err == "ticket-etl: error: stopped by SIGTERM; run the same command again to resume\n"
    assert job.out.read_bytes() == OLD_OUT
    assert rows_in(job.journal) > saved
    assert names_in(job.folder) == {"in.parquet", "out.parquet", "labels.toml", job.journal.name}


def change_labels(job: Job) -> list[str]:
    write_labels(job.folder / "labels.toml", "billing", "bug", "login", "shipping")
    return []


def change_label_order(job: Job) -> list[str]:
    write_labels(job.folder / "labels.toml", "bug", "billing", "login")
    return []


def change_content(job: Job) -> list[str]:
    table = pq.read_table(job.folder / "in.parquet")
    texts = table.column("text").to_pylist()
    texts[-1] = "another text"
    pq.write_table(table.set_column(1, "text", pa.array(texts)), job.folder / "in.parquet")
    return []


def change_prompt(job: Job) -> list[str]:
    with (job.folder / "labels.toml").open("a", encoding="utf-8") as file:
        file.write('[prompt]\ninstruction = "Choose."\n')
    return []


def other_model(job: Job) -> Path:
    """A copy of the job's model in the job's folder."""
    original = Path(job.arguments[job.arguments.index("--model") + 1])
    return Path(shutil.copytree(original, job.folder / "model"))


def change_model(job: Job) -> list[str]:
    model = other_model(job)
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 1.5
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return ["--model", str(model)]


def change_dtype(job: Job) -> list[str]:
    return ["--dtype", "bfloat16"]


def change_cut(job: Job) -> list[str]:
    return ["--max-ticket-tokens", "48"]


CHANGES: dict[str, tuple[Callable[[Job], list[str]], str]] = {
    "labels": (change_labels, "labels, prompt"),
    "order of labels": (change_label_order, "labels, prompt"),
    "content": (change_content, "input"),
    "prompt": (change_prompt, "prompt"),
    "model": (change_model, "model"),
    "dtype": (change_dtype, "dtype"),
    "cut": (change_cut, "max ticket tokens"),
}


@pytest.fixture(scope="module")
def changed_runs(
    request: pytest.FixtureRequest, interrupted: Job, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Job, Outcome]]:
    """The interrupted job run again, each time with one thing changed."""

    def rerun(what: str) -> tuple[Job, Outcome]:
        job = interrupted.copy(tmp_path_factory.mktemp("changed") / "job")
        return job, job.run(*CHANGES[what][0](job))

    return in_parallel(rerun, chosen(request, test_changed_job_starts_afresh, "what"))


@pytest.mark.parametrize("what", CHANGES)
def test_changed_job_starts_afresh(what: str, changed_runs: dict[str, tuple[Job, Outcome]]) -> None:
    """Whatever decides a score has changed since the stop: nothing is resumed, and the run says what it was."""
    job, outcome = changed_runs[what]
    assert_done(outcome)
    (line,) = [line for line in outcome.err.splitlines() if "starting afresh" in line]
    assert line == f"ticket-etl: starting afresh: {CHANGES[what][1]} changed since the interrupted run"
    assert "resuming" not in outcome.err
    assert read_report(job.out)["rows"]["resumed"] == 0
    assert not job.journal.exists()


def test_moved_model_is_the_same_model(interrupted: Job, tmp_path: Path) -> None:
    """A model is known by its content, not by the path it has tonight: the run goes on where it stopped."""
    job = interrupted.copy(tmp_path / "job")
    saved = rows_in(job.journal)
    assert_done(job.run("--model", str(other_model(job))))
    assert read_report(job.out)["rows"]["resumed"] == saved
    assert digest(job.out) == job.expected


def cut_in_a_row(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE windows SET verdicts = substr(verdicts, 1, 20) WHERE number = 1")
    connection.close()


def other_schema(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE windows (something TEXT)")
        connection.execute("CREATE TABLE fingerprint (other TEXT)")
    connection.close()


def wrong_label(path: Path) -> None:
    verdicts = blank_verdicts(WINDOW, 0)
    verdicts["label"] = 77
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE windows SET verdicts = ? WHERE number = 1", (verdicts.tobytes(),))
    connection.close()


def missing_row(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE windows SET verdicts = substr(verdicts, 14) WHERE number = 2")
    connection.close()


def flip_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4096] = random.Random(1).randbytes(4096)
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "nothing": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "text": lambda path: path.write_text("not a journal\n" * 100, encoding="utf-8"),
    "zeros at the start": lambda path: path.write_bytes(bytes(200) + path.read_bytes()[200:]),
    "a page of noise": flip_middle,
    "another schema": other_schema,
    "a window cut inside a row": cut_in_a_row,
    "a window one row short": missing_row,
    "a label out of range": wrong_label,
}


@pytest.fixture(scope="module")
def damaged_runs(
    request: pytest.FixtureRequest, interrupted: Job, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Job, Outcome]]:
    """The interrupted job run again, each time with its journal damaged in one way."""

    def rerun(damage: str) -> tuple[Job, Outcome]:
        job = interrupted.copy(tmp_path_factory.mktemp("damaged") / "job")
        DAMAGES[damage](job.journal)
        return job, job.run()

    return in_parallel(rerun, chosen(request, test_damaged_journal_does_no_harm, "damage"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_journal_does_no_harm(damage: str, damaged_runs: dict[str, tuple[Job, Outcome]]) -> None:
    """A torn or foreign journal is left out of account, and OUT is what it would have been."""
    job, outcome = damaged_runs[damage]
    assert_done(outcome)
    assert digest(job.out) == job.expected
    assert names_in(job.folder) == LEFT_AT_THE_END


def test_journal_that_is_a_folder_is_refused(tickets: Path, out: Path, quick: list[str]) -> None:
    """Something else in the journal's place is exit 4, and stays."""
    (out.parent / ".out.parquet.journal").mkdir()
    assert_refused(run("classify", tickets, out, *quick), 4, ".out.parquet.journal")
    assert names_in(out.parent) == {".out.parquet.journal"}


def poison(model: Path, character: str) -> None:
    """Make the model's input layer give NaN for one character, so that each text with it has no score."""
    tokenizer = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    token = tokenizer["model"]["vocab"][character]
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][token] = float("nan")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def test_failed_tickets_are_tried_again(tmp_path: Path) -> None:
    """A ticket whose scores are no numbers fails alone, exit 5; a resumed run takes its window up again."""
    job = make_job(tmp_path / "job", 1200, text=lambda n: f"{n} ~ poison" if n % 160 == 3 else f"{n} plain words")
    poison(job.folder.with_name("model"), "~")
    assert_done(job.run(), 5)
    expected = digest(job.out)
    rows = pq.read_table(job.out).to_pylist()
    for row in rows:
        assert (row["label_status"] == "failed") == ("~" in row["text"])
        assert (row["label"] is None) == ("~" in row["text"])
    failed_windows = {row["id"] // WINDOW for row in rows if "~" in row["text"]}
    job.out.unlink()
    stop_while_scoring(job)
    with sqlite3.connect(job.journal) as connection:
        done = {number for (number,) in connection.execute("SELECT number FROM windows")}
    connection.close()
    assert done & failed_windows
    assert_done(job.run(), 5)
    assert digest(job.out) == expected
    report = read_report(job.out)
    assert report["rows"]["resumed"] == WINDOW * len(done - failed_windows)
    assert report["rows"]["failed"] == sum("~" in row["text"] for row in rows)


def test_journal_with_a_failed_row_is_reopened_only_there(interrupted: Job, tmp_path: Path) -> None:
    """Of a journal whose second window failed, the other windows are kept, and OUT is the undisturbed one."""
    job = interrupted.copy(tmp_path / "job")
    saved = rows_in(job.journal)
    failed = blank_verdicts(WINDOW, FAILED)
    with sqlite3.connect(job.journal) as connection:
        connection.execute("UPDATE windows SET verdicts = ? WHERE number = 1", (failed.tobytes(),))
    connection.close()
    assert_done(job.run())
    assert digest(job.out) == job.expected
    assert read_report(job.out)["rows"]["resumed"] == saved - WINDOW
