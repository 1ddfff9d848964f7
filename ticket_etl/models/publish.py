"""Makes a model folder appear whole or not at all, whoever else is making the same one.

    lock ─> look again (another process may have finished) ─> fill a hidden sibling ─> fsync ─> rename

The lock is a `flock`, which the kernel frees when its holder dies, so a killed process leaves at most a hidden sibling
folder behind; the next one that makes a model removes it.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_STALE_SECONDS = 24 * 3600.0


@contextlib.contextmanager
def exclusive(lock_file: Path) -> Iterator[bool]:
    """Hold `lock_file` for the block; yields False where the file system knows no locks."""
    with lock_file.open("ab") as stream:
        yield _lock(stream)  # closing the stream unlocks


def _lock(stream: BinaryIO) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX)
    except OSError:
        return False
    return True


def publish(target: Path, fill: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> bool:
    """Make `target` with `fill`, which gets an empty folder; return False when another process had just made it.

    A `target` that is not whole is replaced. Errors of `fill` pass through and leave `target` as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / f".{target.name}.lock") as locked:
        if is_whole(target):
            return False
        _remove_leftovers(target, older_than=0.0 if locked else _STALE_SECONDS)
        building = _hidden_sibling(target)
        building.mkdir()
        try:
            fill(building)
            _settle(building)
            return _swap_in(building, target, is_whole)
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _swap_in(building: Path, target: Path, is_whole: Callable[[Path], bool]) -> bool:
    if target.exists():
        if is_whole(target):  # only where there are no locks
            return False
        damaged = _hidden_sibling(target)
        target.rename(damaged)
        building.rename(target)
        shutil.rmtree(damaged, ignore_errors=True)
    else:
        building.rename(target)
    sync_folder(target.parent)
    return True


def _hidden_sibling(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(6)}.tmp")


def _remove_leftovers(target: Path, older_than: float) -> None:
    for folder in target.parent.glob(f".{target.name}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime >= older_than:
                shutil.rmtree(folder, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Give every file the permissions of the folder (a cache may be shared) and bring it all to the disk."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.iterdir():
        if path.is_dir():
            _settle(path)
        else:
            path.chmod(mode)
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to the disk, where the system can."""
    with contextlib.suppress(OSError):  # not every file system syncs folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
