"""Tiny random models of real layouts, with a tokenizer trained on the spot: every architecture in a second, offline."""

from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    RobertaConfig,
    RobertaModel,
)

CORPUS = [
    "Please send the invoice again, the billing page shows an error.",
    "My parcel never came; the tracking says delivered. I want a refund!",
    "I cannot log in to my account after the password reset.",
    "Ticket: the export crashes with error 500. Label: bug",
] * 20
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WINDOW = 24
"""Far below a prompt's length, yet three layers of it reach back over suffix and ticket."""

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    # Large enough that a wrong mask or position changes labels, not just the last digits.
    "initializer_range": 0.2,
}


def tiny_tokenizer(*, chat: bool = True) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of some 300 tokens; without `chat` it has no template and no pad token."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    pad = {"pad_token": "<|endoftext|>"} if chat else {}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"], **pad
    )
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return tokenizer


def _qwen2(vocab: int) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocab, **SIZES))


def _llama(vocab: int) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab, tie_word_embeddings=True, **SIZES))


def _gpt2(vocab: int) -> PreTrainedModel:
    config = GPT2Config(vocab_size=vocab, n_embd=32, n_layer=2, n_head=4, n_positions=640, initializer_range=0.2)
    return GPT2LMHeadModel(config)


def _mistral(vocab: int) -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(vocab_size=vocab, sliding_window=WINDOW, **SIZES))


def _gemma(vocab: int) -> PreTrainedModel:
    return GemmaForCausalLM(GemmaConfig(vocab_size=vocab, pad_token_id=0, **SIZES))


def _gemma2(vocab: int) -> PreTrainedModel:
    config = Gemma2Config(vocab_size=vocab, pad_token_id=0, sliding_window=WINDOW, final_logit_softcapping=5.0, **SIZES)
    config._attn_implementation = "eager"  # soft-capped attention has no fused kernel
    return Gemma2ForCausalLM(config)


def _gemma2_unwindowed(vocab: int) -> PreTrainedModel:
    kinds = ["full_attention"] * SIZES["num_hidden_layers"]
    config = Gemma2Config(vocab_size=vocab, pad_token_id=0, layer_types=kinds, attn_logit_softcapping=1.0, **SIZES)
    config._attn_implementation = "eager"
    return Gemma2ForCausalLM(config)


def _qwen3_moe(vocab: int) -> PreTrainedModel:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 2}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(vocab_size=vocab, **experts, **SIZES))


def _gemma3(vocab: int) -> PreTrainedModel:
    return Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=vocab, pad_token_id=0, sliding_window=WINDOW, **SIZES))


LAYOUTS: dict[str, Callable[[int], PreTrainedModel]] = {
    "qwen2": _qwen2,
    "llama": _llama,
    "gpt2": _gpt2,  # absolute positions
    "mistral": _mistral,  # sliding window
    "gemma": _gemma,
    "gemma2": _gemma2,  # soft caps, sliding and full layers in turn
    "gemma2-unwindowed": _gemma2_unwindowed,  # soft caps alone
    "gemma3": _gemma3,
    "qwen3-moe": _qwen3_moe,  # experts in every second layer, the last one too
}


def tiny_model(layout: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> PreTrainedModel:
    """A random model of a layout, in float32 and evaluation mode."""
    torch.manual_seed(seed)
    return LAYOUTS[layout](len(tokenizer)).eval()


def tiny_encoder_tokenizer() -> PreTrainedTokenizerFast:
    """The same tokenizer, with special tokens around a text as sentence encoders have them."""
    tokenizer = tiny_tokenizer()
    ends = [("<|im_start|>", tokenizer.convert_tokens_to_ids("<|im_start|>")), ("<|im_end|>", tokenizer.eos_token_id)]
    frame = processors.TemplateProcessing(single="<|im_start|> $A <|im_end|>", special_tokens=ends)
    tokenizer.backend_tokenizer.post_processor = frame
    return tokenizer


def _bert(vocab: int) -> PreTrainedModel:
    return BertModel(BertConfig(vocab_size=vocab, **ENCODER_SIZES), add_pooling_layer=False)


def _roberta(vocab: int) -> PreTrainedModel:
    return RobertaModel(RobertaConfig(vocab_size=vocab, pad_token_id=0, **ENCODER_SIZES), add_pooling_layer=False)


ENCODER_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
ENCODER_LAYOUTS = {"bert": (_bert, 0), "roberta": (_roberta, 1)}
"""Makers of encoders, and the position id of a sequence's first token."""


def tiny_encoder(layout: str, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> PreTrainedModel:
    """A random encoder of a layout, in float32 and evaluation mode."""
    torch.manual_seed(seed)
    make, _ = ENCODER_LAYOUTS[layout]
    return make(len(tokenizer)).eval()


def save_tiny_model(folder: Path, layout: str = "qwen2") -> Path:
    """A model folder as a user would have it."""
    tokenizer = tiny_tokenizer()
    tiny_model(layout, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny_encoder(folder: Path, layout: str = "bert") -> Path:
    """A sentence encoder's folder as a user would have it."""
    tokenizer = tiny_encoder_tokenizer()
    tiny_encoder(layout, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
