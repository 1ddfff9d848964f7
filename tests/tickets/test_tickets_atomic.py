"""Replacing a file whole or not at all, whatever fails."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tickets_helpers import ROOT, assert_one_line, files_in, run_limited

from ticket_etl import atomic
from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import InputError, OutputError

OLD = b"what was there before"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    path = tmp_path / "out.bin"
    path.write_bytes(OLD)
    return path


def put(path: Path, data: bytes = b"new") -> None:
    with replace_atomically(path) as file:
        file.write(data)


def test_new_bytes_replace_the_old_ones_and_nothing_else_is_left(out):
    put(out)
    assert out.read_bytes() == b"new"
    assert files_in(out.parent) == ["out.bin"]


def test_the_temporary_file_lies_beside_the_target_and_is_named_by_the_file(out):
    with replace_atomically(out) as file:
        assert Path(file.name).parent == out.parent
        file.write(b"x")
        assert out.read_bytes() == OLD


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, InputError])
def test_any_exception_keeps_the_old_file(out, error):
    def interrupted():
        with replace_atomically(out) as file:
            file.write(b"half")
            raise error("stop")

    with pytest.raises(error):
        interrupted()
    assert out.read_bytes() == OLD
    assert files_in(out.parent) == ["out.bin"]


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("step", ["fsync", "folder fsync", "replace", "close", "check", "write"])
def test_a_failing_step_keeps_the_old_file_and_leaves_nothing(out, monkeypatch, step, existed):
    if not existed:
        out.unlink()

    def fail(*_args, **_kwargs):
        raise OSError(errno.EIO, "Input/output error")

    check = None
    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif step == "folder fsync":
        monkeypatch.setattr(atomic, "_sync_folder", fail)
    elif step == "replace":
        monkeypatch.setattr(os, "replace", fail)
    elif step == "close":
        monkeypatch.setattr(atomic, "_close", fail)
    elif step == "check":
        check = fail
    with (
        pytest.raises(OutputError, match=r"out\.bin: cannot be written \(Input/output error\)") as caught,
        replace_atomically(out, check=check) as file,
    ):
        fail() if step == "write" else file.write(b"new")
    assert_one_line(caught.value)
    assert files_in(out.parent) == (["out.bin"] if existed else [])
    if existed:
        assert out.read_bytes() == OLD


def test_a_full_disk_keeps_the_old_file(out):
    """A limit on file size stands in for the disk: the write itself fails, in the middle of the data."""
    code = """
import sys, resource
from pathlib import Path
from ticket_etl.errors import OutputError
from ticket_etl.atomic import replace_atomically
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with replace_atomically(Path(sys.argv[1])) as file:
        for _ in range(1000):
            file.write(b"x" * 1000)
except OutputError as error:
    print(error)
"""
    done = run_limited(code, str(out))
    assert "cannot be written (File too large)" in done.stdout, done.stderr
    assert out.read_bytes() == OLD
    assert files_in(out.parent) == ["out.bin"]


def test_the_mode_is_the_replaced_files(out):
    out.chmod(0o640)
    put(out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o640


def test_the_mode_of_a_new_file_is_by_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        put(tmp_path / "new.bin")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "new.bin").stat().st_mode) == 0o640


def test_a_symbolic_link_stays_a_link(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "real.bin").write_bytes(OLD)
    link = tmp_path / "out.bin"
    link.symlink_to("store/real.bin")
    put(link)
    assert link.is_symlink()
    assert (store / "real.bin").read_bytes() == b"new"
    assert files_in(store) == ["real.bin"]


def test_a_link_to_nothing_yet_makes_its_target(tmp_path):
    link = tmp_path / "out.bin"
    link.symlink_to("real.bin")
    put(link)
    assert link.is_symlink()
    assert (tmp_path / "real.bin").read_bytes() == b"new"


@pytest.mark.parametrize("name", ["a b [x]*?.bin", "%20:-.bin", "-out", "übersicht 日本", "n" * 250])
def test_any_name_will_do(tmp_path, name):
    put(tmp_path / name)
    put(tmp_path / name, b"again")
    assert files_in(tmp_path) == [name]


def test_a_missing_folder_is_an_output_error(tmp_path):
    with pytest.raises(OutputError, match="create its folder"):
        put(tmp_path / "no" / "out.bin")


def test_the_temporary_file_of_a_killed_run_is_removed_by_the_next_but_not_that_of_a_living_one(out):
    code = """
import sys, time
from pathlib import Path
from ticket_etl.atomic import replace_atomically
with replace_atomically(Path(sys.argv[1])) as file:
    file.write(b"half")
    print("ready", flush=True)
    time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        child.stdout.readline()
        put(out, b"second")
        assert len(files_in(out.parent)) == 2, "the living run's file was taken away"
        child.send_signal(signal.SIGKILL)
    assert len(files_in(out.parent)) == 2
    assert out.read_bytes() == b"second"
    put(out, b"third")
    assert files_in(out.parent) == ["out.bin"]


def test_foreign_files_that_look_similar_stay(out):
    (out.parent / ".out.bin.tmp-1234").write_bytes(b"someone else's")
    put(out)
    assert files_in(out.parent) == [".out.bin.tmp-1234", "out.bin"]
