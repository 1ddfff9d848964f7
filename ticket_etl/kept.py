"""Small facts that cost time to find out, kept in the cache folder: one JSON file each, whole or absent.

A fact is kept under a key that names everything it depends on. The key stands in the file too: a file that is damaged,
or belongs to another key, counts as absent. Nothing here ever stops a run.
"""

import contextlib
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import ModelError, OutputError
from ticket_etl.models.places import cache_dirs_to_read, writable_cache
from ticket_etl.models.publish import exclusive

log = logging.getLogger("ticket_etl")

Key = Mapping[str, Any]
"""Names and values that JSON can hold."""


def recall(kind: str, key: Key) -> dict[str, Any] | None:
    """What is kept under a key; None if there is nothing, or nothing that can be read."""
    with contextlib.suppress(ModelError):
        for folder in cache_dirs_to_read():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                entry = json.loads((folder / kind / _file_name(key)).read_bytes())
                if entry["key"] == json.loads(json.dumps(key)) and isinstance(entry["value"], dict):
                    return dict(entry["value"])
    return None


def keep(kind: str, key: Key, value: Mapping[str, Any]) -> bool:
    """Keep a value, in place of an earlier one; False if it cannot be kept."""
    try:
        folder = _folder(kind)
        with replace_atomically(folder / _file_name(key)) as file:
            file.write(json.dumps({"key": key, "value": value}, indent=1, allow_nan=False).encode())
    except (ModelError, OSError, OutputError) as error:
        log.debug("not kept: %s", error)
        return False
    return True


@contextlib.contextmanager
def one_at_a_time(kind: str) -> Iterator[bool]:
    """Keep other processes from finding out the same meanwhile; yields False where nothing can be kept."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(_folder(kind) / ".lock"))
        except (ModelError, OSError) as error:
            log.debug("nothing can be kept: %s", error)
            yield False
            return
        yield True


def _folder(kind: str) -> Path:
    folder = writable_cache() / kind
    folder.mkdir(exist_ok=True)
    return folder


def _file_name(key: Key) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24] + ".json"
