"""What the model tests share: a machine of their own for each test, and a tiny random model made once."""

import shutil
from pathlib import Path

import pytest
from tiny import save_tiny_encoder, save_tiny_model, write_modules


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Give each test its own cache and configuration, and no say to the settings of the machine it runs on."""
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TICKET_ETL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TICKET_ETL_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="session")
def tiny_master(tmp_path_factory) -> Path:
    """Return a tiny random Llama with a fast tokenizer; not to be changed."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def tiny_encoder_master(tmp_path_factory) -> Path:
    """Return a tiny random BERT in the layout of sentence-transformers; not to be changed."""
    folder = save_tiny_encoder(tmp_path_factory.mktemp("tiny") / "bert")
    write_modules(folder, ["Transformer", "Pooling", "Normalize"])
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    return folder


@pytest.fixture
def tiny_encoder(tiny_encoder_master, tmp_path) -> Path:
    """Return a copy of the tiny encoder that the test may spoil."""
    return Path(shutil.copytree(tiny_encoder_master, tmp_path / "bert"))


@pytest.fixture
def tiny_model(tiny_master, tmp_path) -> Path:
    """Return a copy of the tiny model that the test may spoil."""
    return Path(shutil.copytree(tiny_master, tmp_path / "tiny"))
