"""The surroundings of a nightly job: bare environments, closed streams, odd names and places, settings."""

import getpass
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import (
    COMMAND,
    assert_done,
    assert_lossless,
    assert_refused,
    clean_environment,
    digest,
    names_in,
    read_report,
    run,
    run_warm,
    shell,
    slow_but,
    write_labels,
)

BARE = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
"""What `env -i` and a careful administrator leave: no HOME, an ASCII locale, no network."""

OLD = b"yesterday's output"
NAMES = ("Rückerstattung", "Störung", "請求")


# --- environments ----------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path, setup_folder: Path) -> Path:
    """A folder whose every name is outside ASCII: input, labels, model."""
    folder = tmp_path / "übersicht 日本"
    folder.mkdir()
    record = {"id": 1, "text": "Rückerstattung bitte", "kategorieä": "日本"}
    (folder / "eingänge.jsonl").write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    write_labels(folder / "bezeichnungen ä.toml", *NAMES)
    shutil.copytree(setup_folder / "model", folder / "modèle")
    return folder


def foreign_command(folder: Path, out: str) -> list[str]:
    labels, model = folder / "bezeichnungen ä.toml", folder / "modèle"
    arguments = ["classify", folder / "eingänge.jsonl", folder / out, "--labels", labels, "--model", model]
    return [str(argument) for argument in [*arguments, "--max-ticket-tokens", "64"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "says"),
    [("</dev/null", True), ("<&- >&-", True), ("<&- >&- 2>&-", False)],
)
def test_bare_environment(streams: str, says: bool, foreign: Path) -> None:
    """No HOME, ASCII locale, closed streams: the job runs, and names, labels and report are right."""
    outcome = shell(f'exec "$0" "$@" {streams}', *foreign_command(foreign, "ausgänge.jsonl"), environment=BARE)
    assert_done(outcome)
    assert bool(outcome.err) == says
    if says:
        assert "ausgänge.jsonl" in outcome.err
    out = foreign / "ausgänge.jsonl"
    (record,) = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert record["label"] in NAMES
    assert record["kategorieä"] == "日本"
    report = read_report(out)
    assert report["output"] == str(out)
    assert report["input"] == str(foreign / "eingänge.jsonl")
    assert set(report["labels"]) == set(NAMES)
    assert names_in(foreign) == {
        *("eingänge.jsonl", "bezeichnungen ä.toml", "modèle", "ausgänge.jsonl", "ausgänge.jsonl.report.json")
    }


def test_message_in_a_bare_environment(foreign: Path) -> None:
    """An error names a file outside ASCII as it is called, in UTF-8."""
    (foreign / "eingänge.jsonl").unlink()
    outcome = run(*foreign_command(foreign, "ausgänge.jsonl"), environment=BARE)
    assert_refused(outcome, 3, "übersicht 日本/eingänge.jsonl")


CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("streams", slow_but(CLOSED[-1:], CLOSED))
def test_refusal_with_closed_streams(streams: str, tmp_path: Path, out: Path, quick: list[str]) -> None:
    """The exit code is right whichever stream is closed."""
    script = f'"$0" "$@" {streams}; echo "$?" > {tmp_path}/code'
    shell(script, "classify", tmp_path / "missing.parquet", out, *quick, environment=BARE)
    assert (tmp_path / "code").read_text(encoding="ascii") == "3\n"
    assert names_in(out.parent) == set()


@pytest.mark.slow
def test_help_in_a_bare_environment() -> None:
    """`--help` and `--version` need nothing."""
    for argument in ("--help", "--version"):
        outcome = run(argument, environment=BARE)
        assert outcome.code == 0
        assert outcome.out
        assert outcome.err == ""
    assert shell('"$0" --help >&-', environment=BARE).code == 0


@pytest.mark.slow
def test_bytes_that_are_no_text_in_a_name(tickets: Path, tmp_path: Path, quick: list[str]) -> None:
    """A file name that is not UTF-8 is a name like any other, in the report too."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    source, out = folder / os.fsdecode(b"in\xff.parquet"), folder / os.fsdecode(b"out\xfe.parquet")
    shutil.copy(tickets, source)
    assert_done(run_warm("classify", source, out, *quick))
    assert names_in(folder) == {source.name, out.name, out.name + ".report.json"}
    assert read_report(out)["rows"]["read"] == 5


@pytest.mark.slow
def test_read_only_model_and_no_cache(tickets: Path, out: Path, tmp_path: Path, subject: dict[str, Any]) -> None:
    """A model folder and a cache that cannot be written, offline: nothing is written there, nothing is missed."""
    from tests.tiny import save_tiny_model

    model, cache = save_tiny_model(tmp_path / "model"), tmp_path / "cache"
    cache.mkdir()
    labels = write_labels(tmp_path / "labels.toml", "billing", "bug")
    before = names_in(model)
    for folder in (model, cache):
        folder.chmod(0o555)
    environment = BARE | {"TICKET_ETL_CACHE": str(cache), "HF_HOME": str(cache), "HOME": "/nonexistent"}
    arguments = ["classify", tickets, out, "--model", model, "--labels", labels, "--max-ticket-tokens", 64]
    outcome = run(*arguments, environment=environment, **subject)
    for folder in (model, cache):
        folder.chmod(0o755)
    assert_done(outcome)
    assert names_in(model) == before
    assert names_in(cache) == set()


def test_model_that_is_not_here(tickets: Path, out: Path) -> None:
    """Offline and never pulled: exit 7 in one line with the way out, without waiting for a network."""
    outcome = run("classify", tickets, out, "--model", "nobody/nothing", environment=BARE)
    assert_refused(outcome, 7, "nobody/nothing", "model pull")
    assert names_in(out.parent) == set()


@pytest.mark.slow
@pytest.mark.parametrize("out_name", ["{folder}/out.parquet", "out.parquet"], ids=["absolute", "relative"])
def test_deleted_current_folder(out_name: str, tickets: Path, out: Path, tmp_path: Path, quick: list[str]) -> None:
    """A current folder that is gone is said in one line (or does not matter), and nothing appears elsewhere."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd "{gone}" && rmdir "{gone}" && exec "$0" "$@"'
    outcome = shell(script, "classify", tickets, out_name.format(folder=out.parent), *quick)
    if outcome.code == 0:
        assert_lossless(tickets, out)
    else:
        assert_refused(outcome, outcome.code)
        assert outcome.code in (2, 4)
        assert "unexpected" not in outcome.err
        assert names_in(out.parent) == set()
    assert not Path("/out.parquet").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["/dev/shm", "/nonexistent"])
def test_temporary_folder_elsewhere(place: str, tickets: Path, out: Path, quick: list[str]) -> None:
    """TMPDIR on another file system, or nowhere, plays no part in writing OUT."""
    before = names_in(Path(place)) if Path(place).is_dir() else set()
    torchs = {f"torchinductor_{getpass.getuser()}"}  # an empty folder that torch makes
    assert_done(run("classify", tickets, out, *quick, environment=clean_environment(TMPDIR=place)))
    assert_lossless(tickets, out)
    assert (names_in(Path(place)) - torchs if Path(place).is_dir() else set()) == before - torchs


# --- names and places ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["-in", "a[b]c*d?e%20f:g#h i\nj'k\"l\\m$n~", "s3:in.jsonl", "x" * 180],
    ids=lambda name: ascii(name)[:20],
)
def test_names_are_literal(name: str, tickets: Path, tmp_path: Path, quick: list[str]) -> None:
    """No pattern, no URL, no option after `--`: a name is a name."""
    shutil.copy(tickets, tmp_path / f"{name}.parquet")
    (tmp_path / "new").mkdir()
    (tmp_path / "axc.parquet").write_bytes(b"what the pattern a[b]c would be taken for")
    outcome = run_warm("classify", *quick, "--", f"{name}.parquet", f"new/{name}.parquet", cwd=tmp_path)
    assert_done(outcome)
    assert_lossless(tickets, tmp_path / "new" / f"{name}.parquet")
    assert names_in(tmp_path / "new") == {f"{name}.parquet", f"{name}.parquet.report.json"}


@pytest.mark.slow
def test_message_about_a_name_of_two_lines_is_one_line(tmp_path: Path, out: Path, quick: list[str]) -> None:
    """A newline in a name does not break the rule of one line an error."""
    assert_refused(run_warm("classify", tmp_path / "a\nb.parquet", out, *quick), 3, "b.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "exists"),
    [("../store/real.parquet", False), ("{store}/real.parquet", True)],
    ids=["relative-dangling", "absolute-there"],
)
def test_link_stays_a_link(target: str, exists: bool, tickets: Path, out: Path, quick: list[str]) -> None:
    """OUT that is a symbolic link is written where it leads, and stays a link."""
    store = out.parent.parent / "store"
    store.mkdir()
    if exists:
        (store / "real.parquet").write_bytes(OLD)
    out.symlink_to(target.format(store=store))
    assert_done(run_warm("classify", tickets, out, *quick))
    assert out.is_symlink()
    assert_lossless(tickets, store / "real.parquet")
    assert names_in(store) == {"real.parquet"}
    assert names_in(out.parent) == {"out.parquet", "out.parquet.report.json"}


@pytest.mark.slow
def test_link_to_itself(tickets: Path, out: Path, quick: list[str]) -> None:
    """A link that leads nowhere but to itself is exit 4."""
    out.symlink_to(out.name)
    assert_refused(run_warm("classify", tickets, out, *quick), 4, "symbolic link")


def spelled(tickets: Path, how: str) -> Path:
    """Another name of a file."""
    other = tickets.with_name("other" + tickets.suffix)
    if how == "symlink":
        other.symlink_to(tickets)
    elif how == "hard link":
        other.hardlink_to(tickets)
    elif how == "spelling":
        return tickets.parent / ".." / tickets.parent.name / tickets.name
    else:
        return tickets
    return other


SPELLINGS = ["same", "symlink", "hard link", "spelling"]


@pytest.mark.parametrize("how", slow_but(["hard link"], SPELLINGS))
def test_output_that_is_the_input(how: str, tickets: Path, quick: list[str]) -> None:
    """OUT naming IN is refused in any spelling, and IN is untouched."""
    out, before = spelled(tickets, how), digest(tickets)
    assert_refused(run_warm("classify", tickets, out, *quick), 2, "the same file")
    assert digest(tickets) == before


@pytest.mark.parametrize("how", slow_but(["symlink"], SPELLINGS))
@pytest.mark.parametrize("what", slow_but(["IN"], ["IN", "OUT", "labels", "cache"]))
def test_report_that_is_another_file_of_the_run(
    how: str, what: str, tickets: Path, out: Path, tmp_path: Path, quick: list[str]
) -> None:
    """A report that would replace the input, the output, the labels or the cache is refused before any work."""
    if what == "OUT" and how == "hard link":
        pytest.skip("replacing one name of a file leaves the other as it was")
    labels = write_labels(tmp_path / "labels.toml", "billing", "bug")
    cache = tmp_path / "cache.sqlite"
    cache.write_bytes(b"")
    if what == "OUT" and how != "same":
        out.write_bytes(OLD)
    target = {"IN": tickets, "OUT": out, "labels": labels, "cache": cache}[what]
    report = spelled(target, how)
    before = target.read_bytes() if target.exists() else None
    arguments = [tickets, out, "--labels", labels, "--cache", cache, "--report", report]
    assert_refused(run_warm("classify", *arguments, *quick[:2], *quick[4:]), 2, "report")
    assert (target.read_bytes() if target.exists() else None) == before


@pytest.mark.slow
def test_cache_that_is_the_input(tickets: Path, out: Path, quick: list[str]) -> None:
    """`--cache IN` does not touch IN."""
    before = digest(tickets)
    assert_refused(run_warm("classify", tickets, out, *quick, "--cache", tickets), 2)
    assert digest(tickets) == before
    assert names_in(tickets.parent) == {"in.parquet"}


def test_no_clobber(tickets: Path, out: Path, quick: list[str]) -> None:
    """`--no-clobber` leaves an existing OUT alone: exit 4."""
    out.write_bytes(OLD)
    assert_refused(run_warm("classify", tickets, out, *quick, "--no-clobber"), 4, "exists already")
    assert out.read_bytes() == OLD
    assert names_in(out.parent) == {"out.parquet"}


OUTPUTS = {
    "its folder is missing": ("nowhere/out.parquet", 4),
    "a folder": ("folder.parquet", 4),
    "a FIFO": ("fifo.parquet", 4),
    "below a file": ("file.parquet/out.parquet", 4),
    "unknown suffix": ("out.csv", 2),
    "no suffix": ("out", 2),
    "too long a name": ("x" * 250 + ".parquet", 4),
    "nothing": ("", 2),
    "the folder itself": (".", 2),
}


@pytest.mark.parametrize("what", slow_but(["its folder is missing", "a FIFO"], OUTPUTS))
def test_impossible_output(what: str, tickets: Path, tmp_path: Path, quick: list[str]) -> None:
    """An OUT that cannot be written is refused before the model loads."""
    name, code = OUTPUTS[what]
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "folder.parquet").mkdir()
    (folder / "file.parquet").write_bytes(OLD)
    os.mkfifo(folder / "fifo.parquet")
    before = names_in(folder), names_in(tmp_path)
    assert_refused(run_warm("classify", tickets, name, *quick, cwd=folder), code)
    assert (names_in(folder), names_in(tmp_path)) == before
    assert (folder / "file.parquet").read_bytes() == OLD


INPUTS = {
    "missing": "missing.parquet",
    "an empty folder": "empty",
    "a FIFO": "fifo.jsonl",
    "/dev/null": "/dev/null",
    "unknown suffix": "notes.txt",
    "nothing": "",
    "a link to nowhere": "nowhere.parquet",
}


@pytest.mark.parametrize("what", slow_but(["a FIFO", "missing"], INPUTS))
def test_impossible_input(what: str, tmp_path: Path, out: Path, quick: list[str]) -> None:
    """An IN that is no file of tickets is exit 3 at once; a FIFO does not block."""
    folder = tmp_path / "place"
    folder.mkdir()
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("hello\n", encoding="utf-8")
    (folder / "nowhere.parquet").symlink_to("no such file")
    os.mkfifo(folder / "fifo.jsonl")
    assert_refused(run_warm("classify", INPUTS[what], out, *quick, cwd=folder), 3)
    assert names_in(out.parent) == set()


@pytest.mark.slow
@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), (0o002, 0o664)])
def test_mode_by_umask(umask: int, mode: int, tickets: Path, out: Path, quick: list[str]) -> None:
    """New files have the mode that the umask gives; no file beside them is more open while the run goes on."""
    assert_done(run_warm("classify", tickets, out, *quick, umask=umask))
    assert out.stat().st_mode & 0o777 == mode
    assert out.with_name("out.parquet.report.json").stat().st_mode & 0o777 == mode


@pytest.mark.slow
def test_mode_of_the_replaced_file(tickets: Path, out: Path, quick: list[str]) -> None:
    """A replaced file keeps its mode, whatever the umask."""
    out.write_bytes(OLD)
    out.chmod(0o604)
    assert_done(run_warm("classify", tickets, out, *quick, umask=0o077))
    assert out.stat().st_mode & 0o777 == 0o604


# --- settings --------------------------------------------------------------------------------------------------------


def test_flag_beats_environment_beats_file(tickets: Path, out: Path, tmp_path: Path) -> None:
    """Of three label files named in three places, the flag's is read, then the environment's, then the file's."""
    (tmp_path / "ticket-etl.toml").write_text('labels = "file.toml"\n', encoding="utf-8")
    environment = clean_environment(TICKET_ETL_LABELS="environment.toml")
    command = ["classify", tickets, out]
    assert_refused(run_warm(*command, cwd=tmp_path), 2, "label file file.toml")
    assert_refused(run_warm(*command, cwd=tmp_path, environment=environment), 2, "label file environment.toml")
    flagged = [*command, "--labels", "flag.toml"]
    assert_refused(run_warm(*flagged, cwd=tmp_path, environment=environment), 2, "label file flag.toml")


@pytest.mark.slow
def test_named_file_beats_the_one_in_the_current_folder(tickets: Path, out: Path, tmp_path: Path) -> None:
    """`--config` and TICKET_ETL_CONFIG name the file that is read instead."""
    (tmp_path / "ticket-etl.toml").write_text('labels = "here.toml"\n', encoding="utf-8")
    (tmp_path / "other.toml").write_text('labels = "there.toml"\n', encoding="utf-8")
    command = ["classify", tickets, out]
    assert_refused(run_warm(*command, "--config", "other.toml", cwd=tmp_path), 2, "there.toml")
    environment = clean_environment(TICKET_ETL_CONFIG=str(tmp_path / "other.toml"))
    assert_refused(run_warm(*command, cwd=tmp_path, environment=environment), 2, "there.toml")


BAD_FILES = {
    "unknown key": ('colour = "red"\n', ("colour", "ticket-etl.toml")),
    "key of a table": ("[classify]\nseed = 1\n", ("classify",)),
    "not TOML": ("labels = \n", ("ticket-etl.toml",)),
    "not UTF-8": ("labels = '\udcff'\n", ("ticket-etl.toml",)),
    "number out of range": ("window-tickets = 0\n", ("window-tickets",)),
    "word for a number": ('window-tickets = "many"\n', ("window-tickets",)),
    "fraction for a number": ("window-tickets = 1.5\n", ("window-tickets",)),
    "unknown choice": ('dtype = "int3"\n', ("int3",)),
    "unknown strategy": ('strategy = "magic"\n', ("magic",)),
    "number for a path": ("labels = 5\n", ("label file 5",)),
    "word for a switch": ('replace-columns = "perhaps"\n', ("replace-columns",)),
    "list for a word": ('model = ["a", "b"]\n', ("model",)),
}


@pytest.mark.parametrize("what", slow_but(["unknown key", "fraction for a number"], BAD_FILES))
def test_bad_configuration_file(what: str, tickets: Path, out: Path, tmp_path: Path) -> None:
    """A configuration file that cannot be meant is exit 2 in one line that names what is wrong with it."""
    text, words = BAD_FILES[what]
    (tmp_path / "ticket-etl.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    assert_refused(run_warm("classify", tickets, out, cwd=tmp_path), 2, *words)


TEXT_COLUMNS = ['text-column = "subject"', 'text-column = ["subject", "text"]', 'text_column = ["subject"]']


@pytest.mark.parametrize("line", slow_but(TEXT_COLUMNS[:1], TEXT_COLUMNS))
def test_text_columns_from_the_file(line: str, tickets: Path, out: Path, tmp_path: Path, quick: list[str]) -> None:
    """`text-column` in the file is the flag's word; a name or a list of names."""
    (tmp_path / "ticket-etl.toml").write_text(line + "\n", encoding="utf-8")
    assert_refused(run_warm("classify", tickets, out, *quick, cwd=tmp_path), 2, "'subject'")


@pytest.mark.slow
def test_text_column_with_a_space_from_the_environment(tickets: Path, out: Path, quick: list[str]) -> None:
    """A column name may hold a space, in the environment too."""
    environment = clean_environment(TICKET_ETL_TEXT_COLUMN="full text")
    assert_refused(run_warm("classify", tickets, out, *quick, environment=environment), 2, "'full text'")


@pytest.mark.slow
def test_switches_from_the_file(tickets: Path, out: Path, tmp_path: Path, quick: list[str]) -> None:
    """A switch is set in the file under its own long name."""
    out.write_bytes(OLD)
    (tmp_path / "ticket-etl.toml").write_text("no-clobber = true\n", encoding="utf-8")
    assert_refused(run_warm("classify", tickets, out, *quick, cwd=tmp_path), 4, "exists already")


BAD_ARGUMENTS: list[tuple[str, ...]] = [
    ("--window-tickets", "0"),
    ("--window-tickets", "many"),
    ("--max-ticket-tokens", "-1"),
    ("--max-batch-tokens", ""),
    ("--dtype", "int8"),
    ("--device", "tpu"),
    ("--strategy", "magic"),
    ("--bad-records", "ignore"),
    ("--no-such-option",),
    ("one argument too many",),
    ("--config", "missing.toml"),
    ("--labels", "missing.toml"),
]


@pytest.mark.parametrize("arguments", slow_but(BAD_ARGUMENTS[:1], BAD_ARGUMENTS, " ".join))
def test_bad_argument(arguments: tuple[str, ...], tickets: Path, out: Path) -> None:
    """What the command line cannot mean is exit 2 in one line."""
    assert_refused(run_warm("classify", tickets, out, *arguments), 2)
    assert names_in(out.parent) == set()


@pytest.mark.slow
def test_bad_environment_value(tickets: Path, out: Path) -> None:
    """A bad value in the environment is exit 2."""
    environment = clean_environment(TICKET_ETL_WINDOW_TICKETS="many")
    assert_refused(run_warm("classify", tickets, out, environment=environment), 2, "many")


@pytest.mark.slow
def test_no_arguments() -> None:
    """The bare command, and one without its arguments, explain themselves and exit 2."""
    for arguments in ((), ("classify",), ("plan",)):
        outcome = run(*arguments)
        assert outcome.code == 2
        assert "Usage: ticket-etl" in outcome.out + outcome.err
        assert "Traceback" not in outcome.err


@pytest.mark.slow
def test_order_of_refusals(tmp_path: Path, setup_folder: Path) -> None:
    """Everything is wrong: what is told first is OUT's place, then the labels, the model, the input, the columns."""
    labels, model = setup_folder / "labels.toml", setup_folder / "model"
    tickets = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ["a"], "label": ["b"]}), tickets)
    missing, nowhere, out = tmp_path / "missing.parquet", tmp_path / "nowhere" / "out.parquet", tmp_path / "out.parquet"
    bad_labels, bad_model = tmp_path / "missing.toml", "/nonexistent/model"
    for source, target, used_labels, used_model, code, words in (
        (missing, nowhere, bad_labels, bad_model, 4, "nowhere"),
        (missing, out, bad_labels, bad_model, 2, "missing.toml"),
        (missing, out, labels, bad_model, 7, "/nonexistent/model"),
        (missing, out, labels, model, 3, "missing.parquet"),
        (tickets, out, labels, model, 2, "--replace-columns"),
    ):
        outcome = run_warm("classify", source, target, "--labels", used_labels, "--model", used_model)
        assert_refused(outcome, code, words)


def test_model_is_looked_for_before_data_is_read(tmp_path: Path, out: Path) -> None:
    """A missing model is exit 7 although IN, a FIFO that nobody writes to, could not even be opened."""
    os.mkfifo(tmp_path / "in.jsonl")
    outcome = run("classify", tmp_path / "in.jsonl", out, "--model", "/nonexistent/model")
    assert_refused(outcome, 7, "/nonexistent/model")


def test_report_in_a_missing_folder(tickets: Path, out: Path, tmp_path: Path, quick: list[str]) -> None:
    """A report that cannot be written is refused before the work, not after it."""
    outcome = run_warm("classify", tickets, out, *quick, "--report", tmp_path / "nowhere" / "report.json")
    assert_refused(outcome, 4, "the report")
    assert names_in(out.parent) == set()


@pytest.mark.slow
def test_cpu_limit_is_no_traceback(tickets: Path, out: Path, quick: list[str]) -> None:
    """A run that the system ends (here: SIGXCPU's default) leaves nothing behind but what a killed run may."""
    process = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -t 1; exec "$0" "$@"', COMMAND, "classify", tickets, out, *quick],
        env=clean_environment(),
        capture_output=True,
        timeout=60,
    )
    assert process.returncode in (-signal.SIGXCPU, -signal.SIGKILL, 0)
    journal = {".out.parquet.journal", ".out.parquet.journal-journal"}
    assert names_in(out.parent) <= {"out.parquet", "out.parquet.report.json"} | journal
