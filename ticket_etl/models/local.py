"""A model folder of the user's own: checked before anything else is read, hashed so that a report can name it."""

import re
from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.models.folder import ModelFolder, content_revision, read_json, stamp_files
from ticket_etl.models.kinds import usable_kind
from ticket_etl.models.pooling import pooling_in
from ticket_etl.models.weights import summarize_weights

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)


def find_local(name: str) -> ModelFolder:
    """Return the model in the folder `name`, or raise ModelError that says why it cannot be used."""
    path = Path(name).expanduser().absolute()
    try:
        kind = check_folder(name, path)
        revision = content_revision(stamp_files(path))
    except OSError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}; mend its permissions") from None
    return ModelFolder(name, path, revision, _licence_in_readme(path), "folder", kind)


def check_folder(name: str, path: Path) -> str:
    """Return the kind of the model in `path`: a decoder or an encoder, whole, in safetensors, with a tokenizer.

    Anything else is a ModelError.
    """
    if not (path / "config.json").exists() and (path / "adapter_config.json").exists():
        raise ModelError(f"{name} is an adapter, not a whole model; merge it into its base model and save that")
    kind = usable_kind(name, read_json(path / "config.json"))
    if (path / "adapter_config.json").exists():
        raise ModelError(f"{name} holds an adapter beside the model; merge it, or remove adapter_config.json")
    summarize_weights(path)
    if not any((path / file).is_file() for file in _TOKENIZER_FILES):
        raise ModelError(f"no tokenizer.json in {path}; copy the model's tokenizer files there")
    if kind == "encoder":
        pooling_in(path, name)
    return kind


def _licence_in_readme(path: Path) -> str | None:
    """Return the licence from the model card's head, if the folder has one: "license: mit" -> "mit"."""
    try:
        card = (path / "README.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    head = card.split("\n---", 1)[0] if card.startswith("---") else ""
    found = re.search(r"^license:\s*[\"']?([\w.+-]+)", head, re.MULTILINE)
    return found.group(1) if found else None
