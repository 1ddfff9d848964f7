"""Makes tiny random models with a byte-level tokenizer, in the layouts that the tests need."""

import json
from collections.abc import Sequence
from pathlib import Path

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def save_tiny_model(folder: Path, layout: str = "Llama", *, auto: str = "AutoModelForCausalLM", **changes) -> Path:
    """Save a model of the `layout` (the name before `Config`) with the tokenizer; `changes` go to its configuration."""
    import torch
    import transformers

    from ticket_etl.models.quiet import quiet_libraries

    tokenizer = tiny_tokenizer()
    config_class = getattr(transformers, f"{layout}Config")
    config = config_class(**SIZES | {"vocab_size": len(tokenizer), "pad_token_id": 0} | changes)
    torch.manual_seed(0)
    with quiet_libraries(offline=True):
        model = getattr(transformers, auto).from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def save_tiny_encoder(folder: Path, layout: str = "Bert", **changes) -> Path:
    """Save an encoder with its pooler, which nobody needs, and without `modules.json`."""
    return save_tiny_model(folder, layout, auto="AutoModel", **{"max_position_embeddings": 64} | changes)


def write_modules(folder: Path, kinds: Sequence[str], pooling: dict[str, object] | None = None) -> None:
    """Write `modules.json` and the pooling's configuration as sentence-transformers does."""
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling or {"pooling_mode_mean_tokens": True}))


def tiny_tokenizer():
    """Return a fast tokenizer that knows single bytes and three special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(specials + alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT
    return fast
