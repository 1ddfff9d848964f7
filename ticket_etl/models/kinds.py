"""Tells from a model's configuration what kind of model it is, and refuses the kinds that cannot label tickets."""

from collections.abc import Mapping

from ticket_etl.errors import ModelError

_CAUSAL_BY_OLDER_NAMES = {"GPT2LMHeadModel", "OpenAIGPTLMHeadModel", "CTRLLMHeadModel"}
_READS_BOTH_WAYS = {  # families of encoders that only become decoders by `is_decoder`
    "albert", "bert", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2", "distilbert", "electra",
    "ernie", "megatron-bert", "modernbert", "mpnet", "rembert", "roberta", "roberta-prelayernorm", "roc_bert",
    "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod",
}  # fmt: skip


def kind_of(config: Mapping[str, object]) -> str:
    """Return `causal`, `encoder`, `encoder-decoder`, `multimodal` or `other`.

    {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} -> "causal"
    """
    names = config.get("architectures")
    architectures = [str(name) for name in names] if isinstance(names, list) else []
    family = str(config.get("model_type") or "")
    if config.get("is_encoder_decoder"):
        return "encoder-decoder"
    if "vision_config" in config or "audio_config" in config:
        return "multimodal"
    if family in _READS_BOTH_WAYS and not config.get("is_decoder"):
        return "encoder"
    if any(name.endswith("ForCausalLM") or name in _CAUSAL_BY_OLDER_NAMES for name in architectures):
        return "causal"
    if any(name.endswith("ForMaskedLM") for name in architectures):
        return "encoder"
    if any(name.endswith("ForConditionalGeneration") for name in architectures):
        return "encoder-decoder"
    bare = all(name.endswith("Model") for name in architectures)
    return "causal" if bare and _transformers_reads(family, "causal") else "other"


def usable_kind(name: str, config: Mapping[str, object]) -> str:
    """Return `causal` or `encoder`; raise ModelError for other kinds, by name, and for what needs foreign code."""
    kind = kind_of(config)
    architectures = config.get("architectures")
    first = str(architectures[0]) if isinstance(architectures, list) and architectures else "no architecture named"
    if kind not in {"causal", "encoder"}:
        what = (
            "a model of another kind"
            if kind == "other"
            else f"an {kind} model"
            if kind[0] in "aeiou"
            else f"a {kind} model"
        )
        raise ModelError(
            f"{name} is {what} ({first}); "
            "labels need a decoder-only language model or a sentence encoder: choose another"
        )
    if config.get("auto_map") and not _transformers_reads(str(config.get("model_type") or ""), kind):
        raise ModelError(
            f"{name} ({first}) needs code of its own from the hub, which is never run; choose another model"
        )
    return kind


def _transformers_reads(family: str, kind: str) -> bool:
    """Say whether transformers itself has a model of this family and kind (imports transformers)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    return family in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind == "causal" else MODEL_MAPPING_NAMES)
