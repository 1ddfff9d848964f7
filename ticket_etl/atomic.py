"""Replace a file so that a reader, or a crash, sees either all of the old one or all of the new one.

The new bytes are written beside the resolved target (a symbolic link stays a link), flushed to the disk, checked by the
caller's own read-back, closed, and renamed over the target; then the folder is flushed. On any failure, an interrupt
included, the temporary file is removed and the old file is untouched.

A temporary file that a killed run left behind is harmless: its name is never used again, and the next run that
replaces the same file removes it. Its owner held an operating-system lock on it while it lived, so a file still being
written by another process is never mistaken for a dead one.

Not here: deciding whether the target may be replaced at all (`output.check_output`).
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ticket_etl.errors import OutputError

NAME_CHARS = 48  # of the target's name kept in the temporary one: at most 192 bytes, file systems allow 255
_RANDOM_PART = re.compile(r"[0-9a-f]{16}\.tmp")
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM}


@contextlib.contextmanager
def replace_atomically(path: Path, *, check: Callable[[Path], None] | None = None) -> Iterator[BinaryIO]:
    """Yield a binary file, open for writing beside `path`, that takes its place when the block ends well.

    The file's `name` is its temporary path. `check` is called with that path once everything is on the disk and before
    the rename; whatever it raises keeps the old file. Every OSError inside the block becomes an OutputError.
    """
    target = Path(os.path.realpath(path))
    file: BinaryIO | None = None
    try:
        remove_stale(target)
        file = _create(target)
        yield file
        file.flush()
        os.fsync(file.fileno())
        if check is not None:
            check(Path(file.name))
        with _still_locked(file):
            _close(file)
            _rename(Path(file.name), target)
    except BaseException as error:
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
            with contextlib.suppress(OSError):
                Path(file.name).unlink()
        if isinstance(error, OSError):
            raise _output_error(path, error) from error
        raise


def remove_stale(target: Path) -> None:
    """Remove temporary files of dead runs beside `target`; those of living ones are locked and stay."""
    prefix = _prefix(target)
    with contextlib.suppress(OSError), os.scandir(target.parent) as entries:
        stale = [e.name for e in entries if e.name.startswith(prefix) and _RANDOM_PART.fullmatch(e.name[len(prefix) :])]
        for name in stale:
            with contextlib.suppress(OSError):
                _remove_if_unlocked(target.parent / name)


def _remove_if_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    finally:
        os.close(descriptor)


def _prefix(target: Path) -> str:
    return f".{target.name[:NAME_CHARS]}."


def _temporary_name(target: Path) -> Path:
    return target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}.tmp")


def _create(target: Path) -> BinaryIO:
    """Open a new, locked temporary file with the mode of the file to replace, or the one that the umask gives."""
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mode = None

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, 0o666 if mode is None else mode & 0o777)

    while True:
        file = open(_temporary_name(target), "x+b", opener=opener)  # noqa: SIM115 - Path.open takes no opener
        if mode is not None:
            with contextlib.suppress(PermissionError):
                os.chmod(file.fileno(), mode)  # noqa: PTH101 - by descriptor; the umask was applied to it above
        if _lock(file):
            return file
        file.close()


def _lock(file: BinaryIO) -> bool:
    """Lock the file; False if a cleaner took it in the moment between creation and lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: the cleaner cannot lock either, so it removes nothing
        return True
    return Path(file.name).exists()


@contextlib.contextmanager
def _still_locked(file: BinaryIO) -> Iterator[None]:
    """Keep the file's lock when the file is closed: it belongs to all descriptors of one opening (flock(2))."""
    descriptor = os.dup(file.fileno())
    try:
        yield
    finally:
        os.close(descriptor)


def _close(file: BinaryIO) -> None:
    file.close()


def _rename(temporary: Path, target: Path) -> None:
    """Rename and flush the folder; if that fails, put the old file back."""
    backup = _temporary_name(target)
    try:
        os.link(target, backup)  # a second name for the old file, for the way back
    except OSError:
        backup = None  # type: ignore[assignment]  # no old file, or no hard links here
    existed = target.exists()
    try:
        os.replace(temporary, target)  # noqa: PTH105
        try:
            _sync_folder(target.parent)
        except BaseException:
            if backup is not None:
                os.replace(backup, target)  # noqa: PTH105
            elif not existed:
                target.unlink()
            raise
    finally:
        if backup is not None:
            with contextlib.suppress(OSError):
                backup.unlink()


def _sync_folder(folder: Path) -> None:
    """Flush the folder's entry to the disk, where the system knows how to."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno in _NO_FOLDER_SYNC:  # a folder may be writable without being readable
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def _output_error(path: Path, error: OSError) -> OutputError:
    reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
    advice = {
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "free some space",
        errno.EFBIG: "raise the limit on file sizes",
        errno.ENOENT: "create its folder",
        errno.EACCES: "ask for write permission in its folder",
        errno.EPERM: "ask for write permission in its folder",
        errno.EROFS: "choose a folder that can be written",
    }.get(error.errno or 0, "check the disk")
    return OutputError(
        f"{path}: cannot be written ({reason}); what was there before is unchanged; {advice} and run again"
    )
