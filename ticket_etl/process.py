"""What a process owes its surroundings: streams that speak UTF-8, bounded memory, and a good end on a signal."""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ticket_etl.errors import Interrupted, UsageError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_WAY_OUT_SECONDS = 10.0
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def prepare_streams() -> None:
    """Print UTF-8 whatever the locale (cron's is often plain ASCII), and give closed streams a place to go.

    Without the latter, the next file opened would take the closed stream's number, and be printed into.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # Standard input is opened for writing, so that reading it fails instead of finding nothing.
            os.open(os.devnull, os.O_WRONLY)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")


def prepare_memory() -> None:
    """Keep memory flat over batches of ever new shapes, and quick to get; to be called before torch is loaded.

    torch and oneDNN keep a kernel with its scratch memory for each of the last 1,024 shapes of a matrix product:
    several MB for every new batch size. One batch needs a handful.

    glibc gives the memory of every large tensor back to the system when it is freed, and gets it anew, page by page,
    for the next: that took a tenth of a run. Blocks up to 32 MB, the most that glibc allows, come from memory that is
    kept.
    """
    for variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(variable, "32")
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def check_current_folder() -> None:
    """Relative paths need a current folder that is still there, and so do some libraries while they load.

    Raises:
        UsageError: it is gone.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError("the current folder does not exist any more; change to another") from error


def readable(text: str) -> str:
    """Text that can be printed and stored, made of names that need not be UTF-8 to Python.

    In an ASCII locale, Python hands over a file name's bytes as surrogates; here they become the characters they stand
    for, and bytes that are no UTF-8 become `\\xff`.

    >>> readable("caf\\udcc3\\udca9 \\udcff")
    'caf\xe9 \\\\xff'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def drop_standard_output() -> None:
    """Send what is left of the output nowhere, so that the interpreter does not fail on it while it shuts down."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def ignore_signals() -> None:
    """Let the process end as it is about to."""
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Turn termination signals into `Interrupted`, so that every file is left as it should be."""

    raised_at = float("-inf")

    def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
        nonlocal raised_at
        # The way out must not be interrupted by an impatient second signal; but should a callback have swallowed the
        # first, a later one is heard.
        if time.monotonic() - raised_at > _WAY_OUT_SECONDS:
            raised_at = time.monotonic()
            raise Interrupted(signum)

    def send_again(lost: "sys.UnraisableHookArgs") -> None:
        nonlocal raised_at
        if not isinstance(lost.exc_value, Interrupted):
            report_lost(lost)
            return
        # The signal came during a finalizer, which lets no exception out: it comes again when that is over.
        raised_at = float("-inf")
        threading.Timer(0.01, signal.raise_signal, [lost.exc_value.signum]).start()

    # A signal that the parent ignores (nohup) stays ignored.
    caught = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, interrupt) for each in caught}
    report_lost, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
    finally:
        sys.unraisablehook = report_lost
        for each, handler in before.items():
            signal.signal(each, handler)
