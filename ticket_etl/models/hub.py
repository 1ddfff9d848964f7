"""Downloads a model from the Hugging Face hub: one commit, safetensors and tokenizer files only, whole or not at all.

    ask the hub which files the commit holds ─> refuse what can't be used ─> download beside ─> compare ─> rename

Nothing else in the program talks to the hub: a model once here is found by `installed` without a request.
"""

import fnmatch
import logging
import shutil
import time
from pathlib import Path
from typing import Any

from ticket_etl.errors import ModelError
from ticket_etl.models import installed, places
from ticket_etl.models.folder import MODULE_CONFIGS, ModelFolder, is_whole, sha256_of, write_manifest
from ticket_etl.models.hub_errors import hub_errors, quiet_hub
from ticket_etl.models.kinds import usable_kind
from ticket_etl.models.local import check_folder
from ticket_etl.models.publish import publish
from ticket_etl.models.registry import KNOWN_MODELS

_WANTED = (
    "config.json", "generation_config.json", "model.safetensors", "model-*.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "spiece.model", "chat_template.jinja", "chat_template.json", "LICENSE*",
    "vocab.txt", "sentencepiece.bpe.model", "modules.json", "sentence_*_config.json",
    "config_sentence_transformers.json", MODULE_CONFIGS,
)  # fmt: skip
_ATTEMPTS = 3

_log = logging.getLogger("ticket_etl")


def pull(name: str, revision: str | None = None) -> ModelFolder:
    """Return the model, downloading it unless this commit is here and whole; then a plain name means this commit."""
    known = KNOWN_MODELS.get(name)
    revision = revision or (known.revision if known else None)
    path = installed.installed_path(name, revision) if revision else None
    if path is None or not is_whole(path):
        path = _download(name, revision)
    with hub_errors(name):
        installed.make_current(path.parent, path.name)
        found = installed.open_revision(name, path)
    _log.info("%s is installed at commit %s in %s", name, found.revision, found.path)
    return found


def _download(name: str, revision: str | None) -> Path:
    cache = places.writable_cache()
    with hub_errors(name), quiet_hub():
        listing = _ask_hub(name, revision)
        files = _wanted_files(name, listing)
        if listing.config and listing.config.get("architectures"):  # else the downloaded configuration tells
            usable_kind(name, listing.config)
        target = installed.model_folder(cache, name) / listing.sha
        partial = target.with_name(f".{listing.sha}.partial")
        places.need_space(cache, sum(file.size or 0 for file in files), name)

        def fill(folder: Path) -> None:
            """Download into a folder that outlives a broken connection, so that the next try goes on from there."""
            _fetch(name, listing.sha, files, partial)
            _compare(name, files, partial)
            check_folder(name, partial)
            for file in files:
                (folder / file.rfilename).parent.mkdir(parents=True, exist_ok=True)
                (partial / file.rfilename).rename(folder / file.rfilename)
            write_manifest(folder, _licence(name, listing))
            shutil.rmtree(partial, ignore_errors=True)

        publish(target, fill, is_whole)
    return target


def _ask_hub(name: str, revision: str | None) -> Any:
    """Return what the hub knows of a commit: its full id, the files with sizes and hashes, the licence."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return HfApi().model_info(name, revision=revision, files_metadata=True, timeout=20)
        except HfHubHTTPError as error:
            if attempt == _ATTEMPTS or (error.response.status_code != 429 and error.response.status_code < 500):
                raise
            time.sleep(2.0**attempt)
    raise AssertionError("unreachable")


def _fetch(name: str, commit: str, files: list[Any], partial: Path) -> None:
    from huggingface_hub import snapshot_download

    size = sum(file.size or 0 for file in files) // 10**6
    _log.info("downloading %s at commit %s (%d MB)", name, commit, size)
    snapshot_download(
        name, revision=commit, local_dir=partial, allow_patterns=[file.rfilename for file in files], max_workers=4
    )


def _wanted_files(name: str, listing: Any) -> list[Any]:
    files = [f for f in listing.siblings or () if any(fnmatch.fnmatchcase(f.rfilename, want) for want in _WANTED)]
    if not any(file.rfilename.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{name} has no safetensors weights on the hub, and pickle is not loaded; choose another model"
        )
    return files


def _compare(name: str, files: list[Any], partial: Path) -> None:
    """Compare what came with what the hub announced; on a difference the download starts afresh next time."""
    for file in files:
        path = partial / file.rfilename
        sha256 = getattr(file.lfs, "sha256", None)
        if (
            not path.is_file()
            or (file.size is not None and path.stat().st_size != file.size)
            or (sha256 is not None and sha256_of(path) != sha256)
        ):
            shutil.rmtree(partial, ignore_errors=True)
            raise ModelError(f"the download of {name} is not whole ({file.rfilename}); run the same command again")


def _licence(name: str, listing: Any) -> str | None:
    if name in KNOWN_MODELS:
        return KNOWN_MODELS[name].licence
    return next((tag.removeprefix("license:") for tag in listing.tags or () if tag.startswith("license:")), None)
