"""Loads a model folder into memory, decoder or encoder: weights, tokenizer, nothing random, nothing from the network.

Not imported by the package itself, because it imports torch and transformers.
"""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from ticket_etl.errors import ModelError
from ticket_etl.models.folder import ModelFolder
from ticket_etl.models.quiet import quiet_libraries

_log = logging.getLogger("ticket_etl")


def load_model(
    folder: ModelFolder, *, device: str, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return a causal model, ready to read with, and its fast tokenizer; any failure is a ModelError in one line.

    The dtype is always given: without one, transformers follows the file, and half precision is very slow on a CPU.
    """
    return _load(folder, _causal_weights, device, dtype)


def load_encoder(
    folder: ModelFolder, *, device: str, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return an encoder without any head or pooler, and its fast tokenizer; any failure is a ModelError in one line.

    Called with `input_ids`, `position_ids` and what mask its attention needs, it yields `last_hidden_state`
    [rows, tokens, hidden]; `ticket_etl.models.pooling` says how vectors are made of it. Attention goes through
    transformers' AttentionInterface, so that it can be replaced; an architecture that has its own is refused.
    """
    return _load(folder, _encoder_weights, device, dtype)


def _load(
    folder: ModelFolder, read_weights: Callable[[ModelFolder, torch.dtype], Any], device: str, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with quiet_libraries(offline=True):
        tokenizer = load_tokenizer(folder)
        try:
            model = read_weights(folder, dtype)
            model.to(device)
        except ModelError:
            raise
        except Exception as error:  # safetensors, torch and transformers each have their own
            raise _refusal(folder, error) from error
    model.requires_grad_(False)
    return model.eval(), tokenizer


def load_tokenizer(folder: ModelFolder) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of a model folder without reading any weights.

    Truncation and padding that its file asks for (MiniLM: always 128 tokens) are off; what to cut is not its decision.
    """
    try:
        with quiet_libraries(offline=True):
            tokenizer = AutoTokenizer.from_pretrained(
                str(folder.path), use_fast=True, local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # the tokenizers library raises bare Exception
        raise ModelError(
            f"cannot load the tokenizer of {folder.name}: {_one_line(error)}; get the model again"
        ) from error
    if not tokenizer.is_fast or not len(tokenizer):
        raise ModelError(f"{folder.name} has no fast tokenizer (tokenizer.json) in {folder.path}; use another model")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, from its configuration."""

    vocabulary: int
    hidden: int
    intermediate: int
    ties_embeddings: bool


def load_shape(folder: ModelFolder) -> ModelShape:
    """Return a model's sizes without reading any weights; any failure is a ModelError in one line."""
    try:
        with quiet_libraries(offline=True):
            whole = AutoConfig.from_pretrained(str(folder.path), local_files_only=True, trust_remote_code=False)
        config = whole.get_text_config(decoder=True)
        inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * config.hidden_size
        return ModelShape(config.vocab_size, config.hidden_size, inner, bool(whole.tie_word_embeddings))
    except Exception as error:  # ValueError of an unknown architecture, AttributeError of one without these sizes
        raise _refusal(folder, error) from error


def _causal_weights(folder: ModelFolder, dtype: torch.dtype) -> Any:
    config = AutoConfig.from_pretrained(str(folder.path), local_files_only=True, trust_remote_code=False)
    # The fused kernel has no place for soft-capping, so such models need the plain one.
    attention = "eager" if getattr(config, "attn_logit_softcapping", None) is not None else "sdpa"
    try:
        return _from_pretrained(AutoModelForCausalLM, folder, config, dtype, attention)
    except ValueError as error:
        if attention == "eager" or "scaled_dot_product_attention" not in str(error):
            raise
        _log.info("%s has no fused attention; using the plain one", folder.name)
        return _from_pretrained(AutoModelForCausalLM, folder, config, dtype, "eager")


def _encoder_weights(folder: ModelFolder, dtype: torch.dtype) -> Any:
    config = AutoConfig.from_pretrained(str(folder.path), local_files_only=True, trust_remote_code=False)
    architecture: Any = MODEL_MAPPING[type(config)]
    takes_positions = "position_ids" in inspect.signature(architecture.forward).parameters
    if not (takes_positions and architecture._supports_attention_backend and architecture._supports_sdpa):
        raise ModelError(
            f"{folder.name} is of an architecture ({config.model_type}) with an attention of its own; "
            "choose an encoder such as BERT, RoBERTa, XLM-RoBERTa or DistilBERT"
        )
    has_pooler = "add_pooling_layer" in inspect.signature(architecture.__init__).parameters
    without_pooler = {"add_pooling_layer": False} if has_pooler else {}
    return _from_pretrained(AutoModel, folder, config, dtype, "sdpa", **without_pooler)


def _from_pretrained(
    auto: Any, folder: ModelFolder, config: Any, dtype: torch.dtype, attention: str, **model_arguments: Any
) -> Any:
    model, info = auto.from_pretrained(
        str(folder.path),
        config=config,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        **model_arguments,
    )
    _refuse_random_weights(folder, info)
    return model


def _refuse_random_weights(folder: ModelFolder, info: dict[str, Any]) -> None:
    """Refuse a model of which transformers made up a part, for want of weights in the file."""
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if found := sorted(str(item) for item in info.get(problem) or ()):
            what = f"{len(found)} weights are missing or of the wrong shape, the first is {found[0]}"
            raise ModelError(f"cannot load {folder.name} from {folder.path}: {what}; get the whole model")


def _refusal(folder: ModelFolder, error: Exception) -> ModelError:
    hint = (
        "choose a smaller model or --device cpu"
        if isinstance(error, torch.OutOfMemoryError)
        else "get the model again or choose another"
    )
    return ModelError(f"cannot load {folder.name} from {folder.path}: {_one_line(error)}; {hint}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
