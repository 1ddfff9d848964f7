"""Run the command once for each fault, in one process, with one system call made to fail: how the fault tests see it.

    python -m tests.command.faulty PLAN.json      -> one JSON line a run, on standard output

PLAN.json is a list of {"fault": NAME, "nth": N, "arguments": [...]}: the N-th call of that kind fails, counted in the
run alone. Everything but the failing call is the real program.
"""

import errno
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from ticket_etl.cli import run_command

_FSYNC, _REPLACE = os.fsync, os.replace


def failing(function: Callable[..., Any], nth: int, number: int) -> Callable[..., Any]:
    """A stand-in that raises on its N-th call."""
    calls = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            raise OSError(number, os.strerror(number))
        return function(*arguments, **options)

    return call


def losing(nth: int) -> Callable[[int], None]:
    """A disk that says it has written everything, and has lost the second half."""
    calls = 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        _FSYNC(descriptor)

    return fsync


def close_fails(nth: int) -> Any:
    """Files opened from Python whose N-th closing fails after it has closed."""
    from ticket_etl import atomic

    def close(file: Any) -> None:
        file.close()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    real = atomic._close
    calls = 0

    def counted(file: Any) -> None:
        nonlocal calls
        calls += 1
        (close if calls == nth else real)(file)

    return mock.patch.object(atomic, "_close", counted)


FAULTS: dict[str, Callable[[int], Any]] = {
    "fsync-eio": lambda nth: mock.patch("os.fsync", failing(_FSYNC, nth, errno.EIO)),
    "fsync-enospc": lambda nth: mock.patch("os.fsync", failing(_FSYNC, nth, errno.ENOSPC)),
    "fsync-loses": lambda nth: mock.patch("os.fsync", losing(nth)),
    "rename-eio": lambda nth: mock.patch("os.replace", failing(_REPLACE, nth, errno.EIO)),
    "rename-enospc": lambda nth: mock.patch("os.replace", failing(_REPLACE, nth, errno.ENOSPC)),
    "rename-eacces": lambda nth: mock.patch("os.replace", failing(_REPLACE, nth, errno.EACCES)),
    "close-eio": close_fails,
}


def main(plan: Path) -> None:
    """Run the plan."""
    results = sys.stdout
    for step in json.loads(plan.read_text(encoding="utf-8")):
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        streams = mock.patch.multiple(sys, stdout=out, stderr=err)
        with streams, FAULTS[step["fault"]](step["nth"]):
            code = run_command(step["arguments"])
        said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
        print(json.dumps({"code": code, "out": said, "err": complained}), file=results, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
