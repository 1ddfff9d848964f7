"""The label cache: what it keeps, what it refuses, and that it never fails a run."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from ticket_etl.cache import LabelCache, open_cache
from ticket_etl.fingerprint import PARTS
from ticket_etl.verdicts import FAILED, OK, Verdicts, blank_verdicts

OF_A_LABEL = (
    "labels",
    "head",
    "prompt",
    "calibration",
    "model",
    "dtype",
    "certification",
    "max ticket tokens",
    "version",
)
OF_THE_RUN = ("input", "text columns", "device", "strategy", "drift profile", "batch limits")
PRINT = dict.fromkeys(OF_A_LABEL + OF_THE_RUN, "1")


def some_verdicts(count: int, status: int = OK) -> Verdicts:
    verdicts = blank_verdicts(count, status)
    verdicts["label"] = np.arange(count)
    verdicts["score"] = verdicts["margin"] = 0.5
    return verdicts


def keys(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(count)]


def known(path: Path, names: list[bytes], fingerprint: dict[str, str] = PRINT) -> dict[bytes, int]:
    with open_cache(path, fingerprint) as cache:
        assert cache is not None
        found = cache.get(names)
        return {key: int(found.verdicts[place]["label"]) for key, place in found.index.items()}


def test_what_was_put_is_there_the_next_night(tmp_path: Path) -> None:
    """Whatever the number of keys, and in whatever order they are asked for."""
    with open_cache(tmp_path / "c", PRINT) as cache:
        assert cache is not None
        cache.put(keys(1_300), some_verdicts(1_300))
    assert known(tmp_path / "c", keys(1_400)[::-1]) == {key: number for number, key in enumerate(keys(1_300))}


@pytest.mark.parametrize("part", list(PRINT))
def test_another_fingerprint_knows_nothing(tmp_path: Path, part: str) -> None:
    """What belongs to the run and not to a text's label makes no difference."""
    with open_cache(tmp_path / "c", PRINT) as cache:
        assert cache is not None
        cache.put(keys(3), some_verdicts(3))
    assert bool(known(tmp_path / "c", keys(3), PRINT | {part: "2"})) == (part in OF_THE_RUN)


def test_every_part_of_a_job_is_among_these() -> None:
    assert set(PARTS) == set(PRINT)


@pytest.mark.parametrize("damage", ["substr(verdict, 1, 5)", "X'07' || substr(verdict, 2)", "NULL || ''", "'text'"])
def test_damaged_entries_are_scored_anew(tmp_path: Path, damage: str) -> None:
    with open_cache(tmp_path / "c", PRINT) as cache:
        assert cache is not None
        cache.put(keys(3), some_verdicts(3))
    with sqlite3.connect(tmp_path / "c") as database:
        database.execute(f"UPDATE OR IGNORE labels SET verdict = {damage} WHERE text = ?", (keys(3)[1],))
    names = keys(3) if "NULL" in damage else [keys(3)[0], keys(3)[2]]
    assert set(known(tmp_path / "c", keys(3))) == set(names)
    with open_cache(tmp_path / "c", PRINT) as cache:
        assert cache is not None
        cache.put(keys(3), some_verdicts(3))
    assert set(known(tmp_path / "c", keys(3))) == set(keys(3)), "and mended"


def test_failed_tickets_are_not_kept(tmp_path: Path) -> None:
    with open_cache(tmp_path / "c", PRINT) as cache:
        assert cache is not None
        cache.put(keys(3), some_verdicts(3, FAILED))
    assert known(tmp_path / "c", keys(3)) == {}


def nights(monkeypatch: pytest.MonkeyPatch, cache: LabelCache, day: int) -> None:
    monkeypatch.setattr(cache, "_today", day)


def test_least_recently_used_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, used, new = keys(3)
    for day, name in ((1, old), (1, used), (3, new)):
        with open_cache(tmp_path / "c", PRINT, limit=2) as cache:
            assert cache is not None
            nights(monkeypatch, cache, 2)
            cache.touch(cache.get([used]))
            nights(monkeypatch, cache, day)
            cache.put([name], some_verdicts(1))
    assert set(known(tmp_path / "c", [old, used, new])) == {used, new}


def test_two_runs_share_a_file(tmp_path: Path) -> None:
    with open_cache(tmp_path / "c", PRINT) as one, open_cache(tmp_path / "c", PRINT) as other:
        assert one is not None
        assert other is not None
        one.put(keys(2), some_verdicts(2))
        other.put(keys(4), some_verdicts(4))
        assert len(one.get(keys(4)).index) == 4


def test_file_of_another_kind_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "precious.txt"
    path.write_bytes(b"not a database " * 300)
    with open_cache(path, PRINT) as cache:
        assert cache is None
    assert path.read_bytes() == b"not a database " * 300
    assert sum("going on without it" in message for message in caplog.messages) == 1


def test_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE precious (x)")
    other.close()
    before = path.read_bytes()
    with open_cache(path, PRINT) as cache:
        assert cache is None
    assert path.read_bytes() == before


def test_failure_in_mid_run_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_cache(tmp_path / "c", PRINT) as cache:
        assert cache is not None
        cache._writer.execute("DROP TABLE labels")
        for _ in range(3):
            cache.put(keys(1), some_verdicts(1))
            assert cache.get(keys(1)).index == {}
    assert sum("the label cache failed" in message for message in caplog.messages) == 1


def test_no_cache_is_none() -> None:
    with open_cache(None, PRINT) as cache:
        assert cache is None
