"""Models from the hub that are already on this machine; looking one up makes no request and writes nothing.

CACHE/hub/Qwen--Qwen2.5-0.5B-Instruct/
    current.json                                 which revision a plain name means
    7ae557604adf67be50417f59c2c2f167def9a775/    one revision, with its manifest
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import ModelError
from ticket_etl.models import places
from ticket_etl.models.folder import DamagedError, ModelFolder, read_json, verify
from ticket_etl.models.kinds import usable_kind
from ticket_etl.paths import is_folder

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CURRENT = "current.json"


def split_hub_name(name: str) -> tuple[str, str | None] | None:
    """Split a hub name from its revision: "org/model@abc" -> ("org/model", "abc"); None for anything else."""
    plain, _, revision = name.partition("@")
    return (plain, revision or None) if _HUB_NAME.fullmatch(plain) else None


def model_folder(cache: Path, name: str) -> Path:
    """Return the folder below `cache` that holds the revisions of one model."""
    return cache / "hub" / name.replace("/", "--")


def find_installed(name: str, revision: str | None = None) -> ModelFolder:
    """Return an installed model from the hub, whole, or raise ModelError that says how to get it."""
    wanted = f"{name}@{revision}" if revision else name
    again = f"ticket-etl model pull {name}" + (f" --revision {revision}" if revision else "")
    path = installed_path(name, revision)
    if path is None:
        raise ModelError(f"the model {wanted} is not installed; run: {again}")
    try:
        return open_revision(wanted, path)
    except DamagedError as damage:
        raise ModelError(f"the model {wanted} in {path} is damaged ({damage}); run: {again}") from None


def open_revision(name: str, path: Path) -> ModelFolder:
    """Return the model whose revision lies in `path`, or raise DamagedError."""
    licence = verify(path).licence
    return ModelFolder(name, path, path.name, licence, "hub", usable_kind(name, read_json(path / "config.json")))


def installed_path(name: str, revision: str | None = None) -> Path | None:
    """Return the folder of a revision (the current one if none is named) without checking what is in it."""
    for cache in places.cache_dirs_to_read():
        folder = model_folder(cache, name)
        wanted = revision or _current_revision(folder)
        if wanted and re.fullmatch(r"[0-9a-f]{7,40}", wanted):
            found = [path for path in _glob(folder, f"{wanted}*") if is_folder(path)]
            if len(found) == 1:
                return found[0]
    return None


def installed_names() -> Iterator[str]:
    """Name every model from the hub that has a current revision here."""
    for cache in places.cache_dirs_to_read():
        for pointer in _glob(cache / "hub", f"*/{_CURRENT}"):
            name = pointer.parent.name.replace("--", "/", 1)
            if installed_path(name) is not None:
                yield name


def make_current(folder: Path, revision: str) -> None:
    """Let the plain name of a model mean this revision from now on."""
    with replace_atomically(folder / _CURRENT) as file:
        file.write(json.dumps({"revision": revision}).encode() + b"\n")


def _glob(folder: Path, pattern: str) -> list[Path]:
    """Matches in order; a folder that nobody may look into has none."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _current_revision(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / _CURRENT).read_text(encoding="utf-8"))["revision"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
