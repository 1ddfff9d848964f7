"""Bytes into lines: decompression, the byte-order mark, and nothing else than `\\n` as the end of a line.

A line may hold up to 256 MiB. Line numbers count every line of the (uncompressed) file from 1, blank ones included.
gzip files may have several members; a truncated gzip or zstd stream is an error, as is anything but padding after it.
"""

import contextlib
import gzip
import io
import zlib
from collections.abc import Generator, Iterator
from typing import BinaryIO

import pyarrow as pa

from ticket_etl.errors import InputError
from ticket_etl.tickets.files import READ_BYTES, Part, one_line

MAX_LINE_BYTES = 256 << 20
BOM = b"\xef\xbb\xbf"
_MAGIC = {
    b"\x1f\x8b": "is gzip-compressed; give it the suffix .jsonl.gz",
    b"\x28\xb5\x2f\xfd": "is zstd-compressed; give it the suffix .jsonl.zst",
    b"PAR1": "is a Parquet file; give it the suffix .parquet",
    b"\xff\xfe": "is UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16 text; convert it first: iconv -f UTF-16 -t UTF-8",
    b"{\0": "is UTF-16 or UTF-32 text; convert it first: iconv -f UTF-16LE -t UTF-8",
    b"\0": "is UTF-16 or UTF-32 text, or binary; convert it to UTF-8 first",
}
Block = tuple[int, list[bytes]]  # number of the first line, lines without their \n


def line_blocks(part: Part) -> Iterator[Block]:
    """Give the part's lines in blocks of about a mebibyte."""
    with contextlib.closing(_decoded_blocks(part)) as blocks:
        for first, lines in blocks:
            if first == 1:
                lines[0] = lines[0].removeprefix(BOM)
            yield first, lines


def _decoded_blocks(part: Part) -> Generator[Block, None, None]:
    if part.compression and part.size == 0:
        raise InputError(f"{part.name}: is empty (0 bytes), which no compressed file is; write it again")
    with part.open() as raw, decompressed(raw, part.compression) as file:
        number, held = 1, 0
        pieces: list[bytes] = []
        while chunk := _read(part, file):
            if number == 1 and not pieces:
                _check_start(part, chunk)
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*pieces, lines[0]])
                yield number, lines
                number += len(lines)
                pieces, held = [], 0
            pieces.append(rest)
            held += len(rest)
            if held > MAX_LINE_BYTES:
                raise InputError(
                    f"{part.name}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB; is it JSON Lines?"
                )
        if held:
            yield number, [b"".join(pieces)]


@contextlib.contextmanager
def decompressed(raw: BinaryIO | io.BufferedReader, compression: str) -> Iterator[BinaryIO]:
    """Yield the uncompressed bytes of an open file."""
    if compression == "gzip":
        with gzip.GzipFile(fileobj=raw, mode="rb") as file:
            yield file  # type: ignore[misc]
    elif compression == "zstd":
        with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd") as file:
            yield file
    else:
        yield raw


@contextlib.contextmanager
def compressed(raw: BinaryIO, compression: str) -> Iterator[BinaryIO]:
    """Yield a file that compresses into an open one; equal content gives equal bytes."""
    if compression == "gzip":
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as file:
            yield file  # type: ignore[misc]
    elif compression == "zstd":
        # pyarrow closes what it wraps, and the caller still has to flush the file to the disk.
        with pa.CompressedOutputStream(pa.PythonFile(_KeepOpen(raw), mode="w"), "zstd") as file:
            yield file
    else:
        yield raw


class _KeepOpen(io.RawIOBase):
    """Passes writes on to a file, but not the closing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[no-untyped-def]
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _read(part: Part, file: BinaryIO) -> bytes:
    try:
        return file.read(READ_BYTES)
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        raise InputError(
            f"{part.name}: cannot be read to its end ({one_line(error)}); copy or write the file again"
        ) from error


def _check_start(part: Part, chunk: bytes) -> None:
    for magic, advice in _MAGIC.items():
        if chunk.startswith(magic):
            raise InputError(f"{part.name}: {advice}")
