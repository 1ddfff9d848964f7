"""The files behind an input: found, opened once, and read as often as needed.

A path is literal: no patterns, no URLs. A folder is a data set of parts of one format, taken in the order of their
names (by code point); names that start with `_` or `.` are skipped; anything else that is not a part (a sub-folder,
a file of another format, a part of 0 bytes) is refused, never skipped silently. `-` is JSONL on standard input, copied
to an anonymous temporary file because the input is read more than once.

Each file is held open, so that an export which replaces it during a run changes nothing; a file that is changed in
place is noticed and refused.
"""

import contextlib
import hashlib
import io
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ticket_etl.errors import InputError

PARQUET, JSONL = "parquet", "jsonl"
MAX_HELD_OPEN = 200  # parts of a data set; beyond that each is opened again when it is its turn
READ_BYTES = 1 << 20

SUFFIXES: dict[str, tuple[str, str]] = {
    ".parquet": (PARQUET, ""),
    ".jsonl": (JSONL, ""),
    ".ndjson": (JSONL, ""),
    ".jsonl.gz": (JSONL, "gzip"),
    ".ndjson.gz": (JSONL, "gzip"),
    ".jsonl.zst": (JSONL, "zstd"),
    ".ndjson.zst": (JSONL, "zstd"),
}


def format_of(name: str) -> tuple[str, str] | None:
    """Give format and compression by suffix: "a.jsonl.gz" -> ("jsonl", "gzip"); None if the suffix is unknown."""
    lower = name.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if lower.endswith(suffix)), None)


class PositionalReader(io.RawIOBase):
    """A read-only view of a file descriptor with a position of its own, so that several passes can run at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._position = descriptor, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        """Read at this view's own position."""
        size = os.preadv(self._descriptor, [buffer], self._position)
        self._position += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move this view's position."""
        start = (0, self._position, os.fstat(self._descriptor).st_size)[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """Give this view's position."""
        return self._position

    def close(self) -> None:
        """Close the descriptor, which belongs to this view alone."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()


@dataclass
class Part:
    """One file of the input. `path` is None for standard input, `name` is what messages call it."""

    name: str
    path: str | None
    compression: str
    descriptor: int | None
    signature: tuple[int, ...]
    held: bool = True

    @property
    def size(self) -> int:
        """Bytes in the file, as stored."""
        return self.signature[0]

    def open(self) -> io.BufferedReader:
        """Open the file from its start, with a position of its own."""
        if self.descriptor is not None:
            descriptor = os.dup(self.descriptor)
        elif self.path is not None and not self.held:
            descriptor = _open_regular(self.path)
        else:
            raise ValueError(f"{self.name}: used after it was closed")
        if _signature(descriptor) != self.signature:
            os.close(descriptor)
            raise InputError(f"{self.name}: changed while it was being read; run again once it is complete")
        return io.BufferedReader(PositionalReader(descriptor), READ_BYTES)

    def close(self) -> None:
        """Let go of the file."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def find_parts(path: str) -> tuple[str, list[Part]]:
    """Give the format of `path` and its files, each checked to be a readable, regular file."""
    if path == "-":
        return JSONL, [_spool_standard_input()]
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - the path is literal, never normalised
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}); check the path") from error
    if is_folder:
        return _folder_parts(path)
    kind = format_of(path)
    if kind is None:
        raise InputError(f"{path}: unknown kind of file; its name must end in one of {', '.join(SUFFIXES)}")
    return kind[0], [_file_part(path, kind[1], hold=True)]


def content_hash(parts: Sequence[Part], *, folder: bool) -> str:
    """Give the SHA-256 of the input's bytes; for a folder, of its parts' names and bytes. Streamed."""
    digests = []
    for part in parts:
        with part.open() as file, reading(part):
            digests.append(hashlib.file_digest(file, "sha256"))
    if not folder:
        return digests[0].hexdigest()
    whole = hashlib.sha256()
    for part, digest in zip(parts, digests, strict=True):
        whole.update(Path(part.name).name.encode("utf-8", "surrogateescape") + b"\0" + digest.digest())
    return whole.hexdigest()


@contextlib.contextmanager
def reading(part: Part, where: str = "") -> Iterator[None]:
    """Turn an operating-system error inside the block into an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{part.name}{where}: cannot be read ({_reason(error)}); check the file") from error


def one_line(error: BaseException, limit: int = 200) -> str:
    """Give an error's message on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or one_line(error)


def _folder_parts(folder: str) -> tuple[str, list[Part]]:
    try:
        names = sorted(n for n in os.listdir(folder) if not n.startswith(("_", ".")))  # noqa: PTH208
    except OSError as error:
        raise InputError(f"{folder}: cannot be listed ({_reason(error)}); check its permissions") from error
    if not names:
        raise InputError(f"{folder}: holds no parts; names that start with '_' or '.' do not count")
    kinds = {name: format_of(name) for name in names}
    paths = {name: os.path.join(folder, name) for name in names}  # noqa: PTH118
    for name in names:
        if os.path.isdir(paths[name]):  # noqa: PTH112
            raise InputError(
                f"{paths[name]}: a folder inside a data set is not read; name it by itself, or move it away"
            )
        if kinds[name] is None:
            raise InputError(f"{paths[name]}: not a part of a data set (by its suffix); move it away")
    formats = sorted({kind[0] for kind in kinds.values() if kind})
    if len(formats) > 1:
        raise InputError(f"{folder}: mixes {' and '.join(formats)} parts; keep one format to a folder")
    parts: list[Part] = []
    for name in names:
        compression = (kinds[name] or ("", ""))[1]
        part = _file_part(paths[name], compression, hold=len(names) <= MAX_HELD_OPEN)
        parts.append(part)
        if part.size == 0:
            for opened in parts:
                opened.close()
            raise InputError(
                f"{part.name}: a part of 0 bytes, probably an export that failed; write it again or remove it"
            )
    return formats[0], parts


def _file_part(path: str, compression: str, *, hold: bool) -> Part:
    descriptor = _open_regular(path)
    part = Part(path, path, compression, descriptor, _signature(descriptor))
    if not hold:
        part.close()
        part.held = False
    return part


def _open_regular(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({_reason(error)}); check path and permissions") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path}: not a regular file; to read from a pipe, use - and redirect it")
    return descriptor


def _signature(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


def _spool_standard_input() -> Part:
    name = "standard input"
    if sys.stdin is None:
        raise InputError(f"{name}: is closed; redirect a JSONL file to it, or name the file")
    try:
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(sys.stdin.buffer, spool, READ_BYTES)
            spool.flush()
            descriptor = os.dup(spool.fileno())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{name}: cannot be copied to {tempfile.gettempdir()} ({_reason(error)}); free space there"
        ) from error
    return Part(name, None, "", descriptor, _signature(descriptor))
