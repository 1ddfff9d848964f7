"""Signals at awkward moments."""

import signal
import time

import pytest

from ticket_etl.errors import Interrupted
from ticket_etl.process import signals_interrupt


class Finalized:
    """Something that is being finalized when the signal comes; what is raised there, the interpreter swallows."""

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def __del__(self) -> None:
        signal.raise_signal(self.signum)


def work(signum: int, seconds: float = 5) -> None:
    """Work that a signal meets in a finalizer."""
    with signals_interrupt():
        Finalized(signum)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.001)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_during_a_finalizer_is_not_lost(signum: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It stops the work as soon as the finalizer is over, and nothing is printed about it."""
    with pytest.raises(Interrupted) as stopped:
        work(signum)
    assert stopped.value.exit_code == 128 + signum
    assert capsys.readouterr().err == ""


def test_other_errors_of_finalizers_are_reported_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook that was there before gets them, during the work and after it."""

    class Faulty:
        def __del__(self) -> None:
            raise ValueError("not ours")

    reported: list[BaseException | None] = []
    monkeypatch.setattr("sys.unraisablehook", lambda lost: reported.append(lost.exc_value))
    with signals_interrupt():
        Faulty()
    Faulty()
    assert [str(each) for each in reported] == ["not ours", "not ours"]
