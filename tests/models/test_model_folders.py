"""Folders of the user's own: which are taken, which are refused, and in what words."""

import json
from pathlib import Path

import pytest

from ticket_etl.errors import ModelError
from ticket_etl.models import find_model, model_info
from ticket_etl.models.kinds import kind_of
from ticket_etl.models.loading import load_shape


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        find_model(str(folder))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_decoder_only_folder_is_taken_with_a_hash_of_its_content(tiny_model):
    found = find_model(str(tiny_model))
    assert (found.name, found.path, found.source, found.licence) == (str(tiny_model), tiny_model, "folder", None)
    assert found.kind == "causal"
    (tiny_model / "README.md").write_text("---\nlicense: mit\nlanguage: en\n---\nlicense: gpl\n")
    assert find_model(str(tiny_model)).revision == found.revision
    assert find_model(str(tiny_model)).licence == "mit"
    change_config(tiny_model, rms_norm_eps=0.1)
    assert find_model(str(tiny_model)).revision != found.revision


def test_relative_path_and_tilde_are_understood(tiny_model, monkeypatch):
    monkeypatch.chdir(tiny_model.parent)
    monkeypatch.setenv("HOME", str(tiny_model.parent))
    for name in ("tiny", "./tiny", "~/tiny"):
        assert find_model(name).path == tiny_model


def test_info_tells_what_the_files_say(tiny_model):
    info = model_info(str(tiny_model))
    assert info.architecture == "LlamaForCausalLM"
    assert (info.weights_dtype, info.context_length, info.chat_template) == ("float32", 2048, True)
    assert (info.kind, info.pooling) == ("causal", None)
    assert info.size_bytes == (tiny_model / "model.safetensors").stat().st_size
    assert info.parameters == 2 * 259 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32) + 32


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}, "causal"),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "causal"),
        ({"architectures": ["LlamaModel"], "model_type": "llama"}, "causal"),
        ({"model_type": "mistral"}, "causal"),
        ({"model_type": "bert"}, "encoder"),
        ({"architectures": ["BertModel"], "model_type": "bert"}, "encoder"),
        ({"architectures": ["RobertaForCausalLM"], "model_type": "roberta"}, "encoder"),
        ({"architectures": ["RobertaForCausalLM"], "model_type": "roberta", "is_decoder": True}, "causal"),
        ({"architectures": ["NewForMaskedLM"], "model_type": "new"}, "encoder"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "encoder-decoder"),
        ({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}, "encoder-decoder"),
        ({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}, "multimodal"),
        ({"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"}, "other"),
        ({"model_type": "unheard-of"}, "other"),
        ({}, "other"),
    ],
)
def test_kind_is_told_from_the_configuration(config, kind):
    assert kind_of(config) == kind


@pytest.mark.parametrize("changes", [{"model_type": "unheard-of"}, {"model_type": "bloom", "hidden_size": None}])
def test_sizes_that_cannot_be_read_are_a_model_error(tiny_model, changes):
    change_config(tiny_model, architectures=["NewForCausalLM"], **changes)
    with pytest.raises(ModelError):
        load_shape(find_model(str(tiny_model)))


def test_other_kinds_are_refused_by_name(tiny_model):
    change_config(tiny_model, architectures=["BartModel"], is_encoder_decoder=True)
    assert "is an encoder-decoder model (BartModel); labels need a decoder-only language model" in refused(tiny_model)
    change_config(tiny_model, is_encoder_decoder=False, vision_config={})
    assert "is a multimodal model (BartModel)" in refused(tiny_model)


def test_code_of_its_own_is_refused_only_where_it_would_be_needed(tiny_model):
    change_config(tiny_model, auto_map={"AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM"})
    assert find_model(str(tiny_model)).source == "folder"
    change_config(tiny_model, model_type="acme", architectures=["AcmeForCausalLM"])
    assert "needs code of its own from the hub, which is never run" in refused(tiny_model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file_is_named(tiny_model, name):
    (tiny_model / name).unlink()
    assert f"no {name} in {tiny_model}" in refused(tiny_model)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": NaN', "\xff"])
def test_garbled_configuration_is_named(tiny_model, text):
    (tiny_model / "config.json").write_bytes(text.encode("latin-1"))
    assert f"cannot read {tiny_model / 'config.json'}" in refused(tiny_model)


def test_pickle_weights_alone_are_refused(tiny_model):
    (tiny_model / "model.safetensors").rename(tiny_model / "pytorch_model.bin")
    assert "has pickle weights only, which can run code and are not loaded" in refused(tiny_model)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer, not the file itself"),
        (b"\x02\0\0\0\0\0\0\0{}x", "11 bytes instead of 10"),
        (b"\x02\0\0\0\0\0\0\0[]", "no whole safetensors file"),
        (b"\x02\0\0\0\0\0\0\0\xff\xff", "no whole safetensors file"),
    ],
)
def test_weights_of_no_known_form_are_refused(tiny_model, content, words):
    (tiny_model / "model.safetensors").write_bytes(content)
    assert words in refused(tiny_model)


def test_weights_cut_short_are_refused(tiny_model):
    path = tiny_model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "no whole safetensors file" in refused(tiny_model)


def test_missing_shard_is_named(tiny_model):
    (tiny_model / "model.safetensors").rename(tiny_model / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tiny_model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "is not whole: model-00002-of-00002.safetensors is missing" in refused(tiny_model)


def test_adapter_is_refused(tiny_model):
    (tiny_model / "adapter_config.json").write_text("{}")
    assert "holds an adapter beside the model" in refused(tiny_model)
    (tiny_model / "config.json").unlink()
    assert "is an adapter, not a whole model" in refused(tiny_model)


@pytest.mark.parametrize("name", ["", "nonsense", "a\0b", "x" * 5000])
def test_name_of_nothing_lists_what_there_is(name):
    with pytest.raises(ModelError, match=r"neither a folder nor one of smollm2, minilm, Qwen/Qwen2.5-0.5B-Instruct"):
        find_model(name)


def test_path_of_nothing_is_called_a_path():
    with pytest.raises(ModelError, match="there is no folder /nowhere/tiny; check the path"):
        find_model("/nowhere/tiny")
