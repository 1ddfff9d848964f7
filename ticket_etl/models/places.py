"""Where models and settings live on this machine, with or without a HOME.

The cache is `TICKET_ETL_CACHE`, else `XDG_CACHE_HOME/ticket-etl`, else `~/.cache/ticket-etl`, else a folder of this
user's own under the system's temporary directory. Nothing here creates a folder except `writable_cache`.
"""

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.paths import is_folder

_APP = "ticket-etl"


def cache_dir() -> Path:
    """Return the cache folder, which need not exist yet; a lack of HOME never makes this fail."""
    if explicit := os.environ.get("TICKET_ETL_CACHE"):
        return _absolute(explicit)
    base = _xdg_base("XDG_CACHE_HOME", ".cache")
    if base is not None and (_readable(base / _APP) or _can_create(base / _APP)):
        return base / _APP
    return _temporary_cache()


def cache_dirs_to_read() -> list[Path]:
    """Return every folder in which a model may already stand, the preferred one first."""
    first = cache_dir()
    if not os.environ.get("TICKET_ETL_CACHE"):
        with contextlib.suppress(ModelError):  # no temporary folder, or not ours: the first one may do all the same
            fallback = _temporary_cache()
            return [first, fallback] if fallback != first and is_folder(fallback) else [first]
    return [first]


def writable_cache() -> Path:
    """Return a cache folder that exists and takes files, or raise ModelError.

    A folder that the user named is taken at the word: when it takes no files, that is an error, not a reason to write
    elsewhere. A default folder that is read-only gives way to the temporary one.
    """
    folder, named = cache_dir(), bool(os.environ.get("TICKET_ETL_CACHE"))
    if not named and not (_writable(folder) or _can_create(folder)):
        folder = _temporary_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o777 if named or folder.name == _APP else 0o700)
    except OSError as error:
        raise _not_writable(folder, error.strerror) from None
    if not _writable(folder):
        raise _not_writable(folder, "read-only")
    return folder


def need_space(cache: Path, num_bytes: int, what: str) -> None:
    """Raise ModelError where `cache` has no room for `what`, before the work is done that would fill the disk."""
    free = shutil.disk_usage(cache).free
    if free < num_bytes:
        raise ModelError(
            f"{what} needs {num_bytes // 10**6} MB in {cache}, which has {free // 10**6} MB left; "
            "free some, or set TICKET_ETL_CACHE to another disk"
        )


def user_config_path() -> Path:
    """Return the user's own configuration file, which need not exist.

    `TICKET_ETL_CONFIG_HOME/config.toml`, else `XDG_CONFIG_HOME/ticket-etl/config.toml`, else
    `~/.config/ticket-etl/config.toml`, else (no home, or a closed one) a file in the cache folder.
    """
    if explicit := os.environ.get("TICKET_ETL_CONFIG_HOME"):
        return _absolute(explicit) / "config.toml"
    base = _xdg_base("XDG_CONFIG_HOME", ".config")
    has_place = base is not None and (is_folder(base / _APP) or _can_create(base / _APP))
    return (base / _APP if base is not None and has_place else cache_dir()) / "config.toml"


def _xdg_base(variable: str, below_home: str) -> Path | None:
    """Follow the XDG rule: an absolute path from the variable, else a folder below the home directory."""
    value = os.environ.get(variable, "")
    if value and Path(value).is_absolute():
        return Path(value)
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry in the password database
        return None
    return home / below_home if home.is_absolute() else None


def _absolute(path: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # "~" without a home
        return Path(path).absolute()


def _temporary_cache() -> Path:
    """Return this user's folder under the temporary directory; refuse one that somebody else prepared."""
    try:
        folder = Path(tempfile.gettempdir()) / f"{_APP}-{_user()}"
        found = folder.lstat()
    except FileNotFoundError as error:
        if error.filename is not None:
            return folder  # not there yet
        raise ModelError(f"no folder for the model cache ({error.strerror}); set TICKET_ETL_CACHE to one") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ModelError(f"model cache {folder} belongs to somebody else; set TICKET_ETL_CACHE to a folder of your own")
    return folder


def _user() -> str:
    return str(os.getuid())


def _readable(folder: Path) -> bool:
    return is_folder(folder) and os.access(folder, os.R_OK | os.X_OK)


def _writable(folder: Path) -> bool:
    return is_folder(folder) and os.access(folder, os.W_OK | os.X_OK)


def _can_create(folder: Path) -> bool:
    """Say whether `folder` is absent and its nearest existing ancestor would take it."""
    if os.path.lexists(folder):
        return False
    return _writable(next((parent for parent in folder.parents if os.path.lexists(parent)), folder))


def _not_writable(folder: Path, reason: str | None) -> ModelError:
    return ModelError(f"cannot write the model cache {folder} ({reason}); set TICKET_ETL_CACHE to a writable folder")
