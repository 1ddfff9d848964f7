"""A tiny model, a short label file, and the two options that make the real command quick."""

import importlib.util
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import without_powers, write_labels
from tests.tiny import save_tiny_model

signal.signal(
    signal.SIGHUP, signal.SIG_DFL
)  # under nohup it is ignored, and so it would be in all that is started here


@pytest.fixture(scope="session")
def setup_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model and labels that all tests use and none changes."""
    folder = tmp_path_factory.mktemp("setup")
    save_tiny_model(folder / "model")
    write_labels(folder / "labels.toml", "billing", "bug", "login")
    return folder


@pytest.fixture(scope="session")
def quick(setup_folder: Path) -> list[str]:
    """Options that make a run cheap."""
    model, labels = setup_folder / "model", setup_folder / "labels.toml"
    return ["--model", str(model), "--labels", str(labels), "--max-ticket-tokens", "64"]


@pytest.fixture(scope="session")
def cases(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared reproduction inputs, written once."""
    path = shared / "cases" / "make_inputs.py"
    spec = importlib.util.spec_from_file_location("make_inputs", path)
    if not path.is_file() or spec is None or spec.loader is None:
        pytest.skip(f"no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path_factory.mktemp("cases")
    for name, _, _, write, big in module.CASES:
        if not big:
            (root / name).mkdir()
            write(root / name)
    return root


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    """Five tickets in a folder of their own, with one repeat and one without text."""
    folder = tmp_path / "in"
    folder.mkdir()
    texts = ["I was billed twice", "cannot log in", "I was billed twice", None, "error 500 on export"]
    pq.write_table(pa.table({"id": pa.array(range(5), pa.int64()), "text": texts}), folder / "in.parquet")
    return folder / "in.parquet"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An output path in an empty folder."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.parquet"


@pytest.fixture
def subject(tmp_path: Path) -> dict[str, Any]:
    """Options that start a process to which permissions apply."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    probe = ["/bin/sh", "-c", 'ls "$0" && exit 3; exit 4', str(closed)]
    try:
        code = subprocess.run(probe, capture_output=True, preexec_fn=without_powers).returncode
    except subprocess.SubprocessError:
        code = 3
    closed.chmod(0o700)
    closed.rmdir()
    if code != 4:
        pytest.skip("permissions do not apply to this user")
    return {"preexec_fn": without_powers}
