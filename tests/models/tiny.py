"""Makes tiny random models with a byte-level tokenizer, in the layouts that the tests need."""

from pathlib import Path

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def save_tiny_model(folder: Path, layout: str = "Llama", **changes) -> Path:
    """Save a model of the `layout` (the name before `Config`) with the tokenizer; `changes` go to its configuration."""
    import torch
    import transformers

    from ticket_etl.models.quiet import quiet_libraries

    tokenizer = tiny_tokenizer()
    config_class = getattr(transformers, f"{layout}Config")
    config = config_class(**SIZES | {"vocab_size": len(tokenizer), "pad_token_id": 0} | changes)
    torch.manual_seed(0)
    with quiet_libraries(offline=True):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


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
