"""Cores by quota, devices by name."""

import os
from pathlib import Path

import pytest
import torch

from ticket_etl import machine
from ticket_etl.errors import UsageError


def quota(folder: Path, content: str | bytes) -> int | None:
    path = folder / "cpu.max"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return machine._quota_cores(path)


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("200000 100000\n", 2),
        ("400000 200000\n", 2),
        ("160000 100000\n", 2),
        ("50000 100000\n", 1),
        ("1000 100000\n", 1),
        ("6400000 100000\n", 64),
        ("max 100000\n", None),
        ("", None),
        ("200000\n", None),
        ("a b\n", None),
        (b"\xff\xfe 100000\n", None),
    ],
)
def test_quota_of_a_container(tmp_path: Path, content: str | bytes, cores: int | None) -> None:
    """Rounded to whole cores, at least one; `max` and what cannot be read are no quota."""
    assert quota(tmp_path, content) == cores


def test_no_quota_file_is_no_quota(tmp_path: Path) -> None:
    assert machine._quota_cores(tmp_path / "cpu.max") is None


def test_usable_cores_are_bounded_by_quota_and_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "_CGROUP_QUOTA", path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert machine.usable_cores() == 8
    path.write_text("300000 100000\n")
    assert machine.usable_cores() == 3
    path.write_text("6400000 100000\n")
    assert machine.usable_cores() == 8


def test_usable_cores_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: the machine's cores, or one if it does not say."""
    monkeypatch.setattr(machine, "_CGROUP_QUOTA", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.usable_cores() == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1


LINUX = """processor\t: 0
model name\t: Some CPU @ 2 GHz
flags\t\t: fpu avx2 avx512f sse2 amx_bf16

processor\t: 1
model name\t: Another
"""
ARM = "processor : 0\nFeatures : fp asimd bf16 sve crc32\n"


@pytest.mark.parametrize(
    ("content", "name", "flags"),
    [(LINUX, "Some CPU @ 2 GHz", ["amx_bf16", "avx2", "avx512f"]), (ARM, None, ["asimd", "bf16", "sve"])],
)
def test_processor_is_named_with_what_decides_its_speed(
    content: str, name: str | None, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(content)
    monkeypatch.setattr(machine, "_CPU_INFO", path)
    monkeypatch.setattr(machine.platform, "processor", lambda: "what the system says")
    found = machine.processor()
    assert found["name"] == (name or "what the system says")
    assert found["instructions"].split()[1:] == flags


def test_processor_where_the_system_says_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "x86_64")
    assert machine.processor()["name"] == "x86_64"


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Which accelerators torch says there are."""
    there = {"cuda": False, "mps": False}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there["mps"])
    return there


def test_auto_device_prefers_accelerators(devices: dict[str, bool]) -> None:
    assert machine.choose_device("auto") == "cpu"
    devices["mps"] = True
    assert machine.choose_device("auto") == "mps"
    devices["cuda"] = True
    assert machine.choose_device("auto") == "cuda"
    assert machine.choose_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_missing_device_is_refused(devices: dict[str, bool], name: str) -> None:
    """A device that was asked for is never silently replaced."""
    with pytest.raises(UsageError, match=f"--device {name} is not available"):
        machine.choose_device(name)


def test_threads_are_left_alone_where_the_user_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("changed the threads"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine.set_threads() == torch.get_num_threads()


def test_threads_are_the_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    monkeypatch.setattr(machine, "usable_cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    machine.set_threads()
    assert given == [3]


def test_peak_memory_is_in_bytes() -> None:
    """A Python process with torch holds more than 50 MB and less than a terabyte."""
    assert 50e6 < machine.peak_memory_bytes() < 1e12
