"""Turns what the hub library raises into one line with the way out, and keeps its own words off the screen."""

import contextlib
import errno
import logging
import sys
from collections.abc import Iterator

from ticket_etl.errors import ModelError

_WITHOUT_HUB = "or copy the model's folder here and give its path as --model"


@contextlib.contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raise a ModelError for anything that goes wrong in the block while `name` is fetched."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the hub library, its HTTP client and the disk each have their own
        raise ModelError(f"cannot get {name}: {_explain(name, error)}") from error


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    """Keep the hub library's log lines out, and its progress bars too where nobody watches (no terminal)."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    library = logging.getLogger("huggingface_hub")
    level, bars_off = library.level, are_progress_bars_disabled()
    library.setLevel(logging.CRITICAL)
    hide_bars = not bars_off and not sys.stderr.isatty()
    if hide_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        library.setLevel(level)
        if hide_bars:
            enable_progress_bars()


def _explain(name: str, error: BaseException) -> str:
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    cause = error.__cause__ or error.__context__
    match error:
        case errors.OfflineModeIsEnabled():
            return f"HF_HUB_OFFLINE is set; unset it for the download, {_WITHOUT_HUB}"
        case errors.GatedRepoError():
            return f"access is gated; accept its terms at {hub}/{name} and set HF_TOKEN, or choose another model"
        case errors.RevisionNotFoundError():
            return f"{hub} has no such revision of it; check --revision"
        case errors.RepositoryNotFoundError():
            return f"{hub} has no such public model; check the name, or set HF_TOKEN if it is private"
        case errors.HfHubHTTPError():
            return _explain_status(hub, error.response.status_code)
        case errors.HFValidationError():
            return f"not a name the hub can have ({_one_line(error)}); check the name"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return "the disk is full; free some space, or set TICKET_ETL_CACHE to another disk"
        case errors.LocalEntryNotFoundError() if isinstance(cause, Exception):
            return _explain(name, cause)  # the library wraps the reason in "not found locally"
        case OSError(filename=str() | bytes()):
            return f"{_one_line(error)}; set TICKET_ETL_CACHE to a writable folder"
        case _:
            reason = f"{type(error).__name__}: {_one_line(error)}"
            return f"the connection to {hub} failed ({reason}); check the network and try again, {_WITHOUT_HUB}"


def _explain_status(hub: str, status: int) -> str:
    if status == 429:
        return f"{hub} answers 429 (too many requests); wait some minutes and try again, or set HF_TOKEN"
    if status >= 500:
        return f"{hub} is down (status {status}); try again later, {_WITHOUT_HUB}"
    return f"{hub} answers with status {status}; check the name, and HF_TOKEN if it is private"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
