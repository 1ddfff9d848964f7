"""Every error that a user can meet, with the exit code it ends the process with.

    TicketEtlError            1  something unforeseen
    ├── UsageError            2  command line, configuration or label file
    ├── InputError            3  input unreadable or refused
    ├── OutputError           4  output cannot be written
    ├── BusyError             6  another run holds the output
    └── ModelError            7  model cannot be loaded

    Interrupted             128+ stopped by a signal (130, 143, 129); like KeyboardInterrupt no Exception, so that no
                                 library that catches those can swallow it

Exit codes 5 (done, but some tickets failed or were quarantined) and 8 (verification found disagreement) are outcomes of
a run, not errors; they stand in `EXIT_PARTIAL` and `EXIT_DISAGREEMENT`.

A message is one line that says what happened, where, and what to do. `cli.main` is the one place that prints it.
"""

import signal

EXIT_PARTIAL = 5
EXIT_DISAGREEMENT = 8


class TicketEtlError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class UsageError(TicketEtlError):
    """The command line, the configuration or the label file asks for something impossible."""

    exit_code = 2


class InputError(TicketEtlError):
    """The input cannot be read, or holds records that are refused."""

    exit_code = 3


class OutputError(TicketEtlError):
    """The output cannot be written; whatever was there before is untouched."""

    exit_code = 4


class BusyError(TicketEtlError):
    """Another run is writing the same output."""

    exit_code = 6


class ModelError(TicketEtlError):
    """The model is missing, unreachable or of an unsupported kind."""

    exit_code = 7


class Interrupted(BaseException):
    """A signal asked the run to stop; the journal of finished windows is kept."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; run the same command again to resume")
        self.signum = signum
        self.exit_code = 128 + signum
