"""Loading a folder: the dtype that was asked for, nothing random, no network, one line when it fails."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_tiny_model

from ticket_etl.errors import ModelError
from ticket_etl.models import find_model
from ticket_etl.models.loading import load_model, load_tokenizer


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))


def load(folder: Path, dtype: torch.dtype = torch.float32):
    return load_model(find_model(str(folder)), device="cpu", dtype=dtype)


def refused(folder: Path) -> str:
    model = find_model(str(folder))
    with pytest.raises(ModelError) as raised:
        load_model(model, device="cpu", dtype=torch.float32)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def change_weights(folder: Path, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_loaded_model_only_reads_and_says_nothing(tiny_model, capfd):
    model, tokenizer = load(tiny_model)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.config._attn_implementation == "sdpa"
    assert tokenizer.is_fast
    assert tokenizer.chat_template
    assert torch.equal(model.lm_head.weight, load_file(tiny_model / "model.safetensors")["lm_head.weight"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_dtype_is_the_one_asked_for_whatever_the_file_has(tiny_model, dtype, stored):
    change_weights(tiny_model, lambda w: w.update({name: tensor.to(stored) for name, tensor in w.items()}))
    config = json.loads((tiny_model / "config.json").read_text())
    (tiny_model / "config.json").write_text(json.dumps(config | {"dtype": str(stored).removeprefix("torch.")}))
    model, _ = load(tiny_model, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("layout", "changes", "attention"),
    [
        ("Gemma2", {"attn_logit_softcapping": 50.0, "head_dim": 8, "num_key_value_heads": 2}, "eager"),
        ("Llama", {"attn_logit_softcapping": 50.0}, "eager"),
        ("Bloom", {"n_head": 4, "n_layer": 2}, "eager"),
        ("GPT2", {"n_positions": 64}, "sdpa"),
        ("Qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}, "sdpa"),
    ],
)
def test_attention_is_fused_where_the_model_allows(tmp_path, layout, changes, attention):
    model, _ = load(save_tiny_model(tmp_path / layout, layout, **changes))
    assert model.config._attn_implementation == attention


def test_weights_that_are_not_in_the_file_are_never_made_up(tiny_model):
    change_weights(tiny_model, lambda weights: weights.pop("lm_head.weight"))
    message = refused(tiny_model)
    assert "1 weights are missing or of the wrong shape, the first is lm_head.weight" in message


def test_weights_of_another_shape_are_refused(tiny_model):
    change_weights(tiny_model, lambda weights: weights.update({"model.norm.weight": torch.ones(31)}))
    assert f"cannot load {tiny_model}" in refused(tiny_model)


def test_weights_that_turn_bad_after_the_check_are_refused(tiny_model):
    model = find_model(str(tiny_model))
    (tiny_model / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ModelError, match=f"^cannot load {tiny_model} from .*; get the model again or choose another$"):
        load_model(model, device="cpu", dtype=torch.float32)


def test_architecture_that_transformers_does_not_know_is_refused(tiny_model):
    config = json.loads((tiny_model / "config.json").read_text())
    (tiny_model / "config.json").write_text(json.dumps(config | {"model_type": "x", "architectures": ["XForCausalLM"]}))
    assert f"cannot load {tiny_model}" in refused(tiny_model) or "tokenizer" in refused(tiny_model)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Nothing"}}'])
def test_garbled_tokenizer_is_refused(tiny_model, content):
    (tiny_model / "tokenizer.json").write_text(content)
    assert f"cannot load the tokenizer of {tiny_model}" in refused(tiny_model)


def test_slow_tokenizer_is_refused(tiny_model, monkeypatch):
    from transformers import AutoTokenizer, PythonBackend

    class Slow(PythonBackend):
        vocab_size = 3

        def get_vocab(self):
            return {}

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: Slow())
    assert "has no fast tokenizer" in refused(tiny_model)


def test_missing_device_is_refused_in_one_line(tiny_model):
    with pytest.raises(ModelError, match=f"cannot load {tiny_model}"):
        load_model(find_model(str(tiny_model)), device="cuda:99", dtype=torch.float32)


def test_tokenizer_alone_needs_no_weights(tiny_model, tmp_path):
    model = find_model(str(tiny_model))
    (tiny_model / "model.safetensors").unlink()
    assert load_tokenizer(model).decode(load_tokenizer(model).encode("Grüße")) == "Grüße"


def test_folder_may_be_read_only_and_its_name_odd(tiny_model, tmp_path):
    odd = Path(shutil.copytree(tiny_model, tmp_path / "Modèle 1 [x]"))
    before = sorted(path.name for path in odd.iterdir())
    load(odd)
    assert sorted(path.name for path in odd.iterdir()) == before
