"""Pulling from a hub: the real client against a server on this machine, in good and in bad weather."""

import contextlib
import json
import logging
import socket
import tomllib

import pytest
from hub_server import HubServer
from tiny import write_modules

from ticket_etl.errors import ModelError
from ticket_etl.models import find_model, installed, list_models, pull_model, user_config_path
from ticket_etl.models.pooling import read_pooling
from ticket_etl.models.registry import KNOWN_MODELS

NAME = "acme/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tiny_master, monkeypatch):
    """Serve the tiny model as `acme/tiny`, with files beside it that nobody should fetch; waits take no time."""
    files = {path.name: path.read_bytes() for path in tiny_master.iterdir()}
    files |= {"pytorch_model.bin": b"pickle", "modeling_acme.py": b"import os", "README.md": b"# Tiny"}
    files["consolidated.safetensors"] = b"twice"
    with serve(files, monkeypatch) as server:
        yield server


@contextlib.contextmanager
def serve(files, monkeypatch):
    with HubServer(NAME, COMMIT, files) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            server.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        yield server


@pytest.fixture
def no_network(monkeypatch):
    """Fail the test at the first attempt to open a connection."""
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))


def test_pulled_model_is_found_later_without_any_request(hub, monkeypatch, caplog, capfd):
    caplog.set_level(logging.INFO, "ticket_etl")
    pulled = pull_model(NAME)
    assert (pulled.name, pulled.revision, pulled.licence, pulled.source) == (NAME, COMMIT, "mit", "hub")
    assert COMMIT in caplog.text
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection was tried"))
    assert find_model(NAME) == pulled
    assert find_model(f"{NAME}@{COMMIT[:12]}").path == pulled.path
    assert NAME in [model.name for model in list_models() if model.installed]


def test_only_weights_configuration_and_tokenizer_are_fetched(hub, tiny_master):
    pulled = pull_model(NAME)
    assert {path.name for path in pulled.path.iterdir()} == {
        *(path.name for path in tiny_master.iterdir()),
        "ticket-etl-model.json",
    }
    assert not any(path.endswith((".bin", ".py", ".md", "consolidated.safetensors")) for path in hub.requests)


def test_pulling_a_named_commit_again_asks_the_hub_nothing(hub):
    pull_model(NAME, revision=COMMIT)
    asked = hub.requests.total()
    pull_model(f"{NAME}@{COMMIT}")
    assert hub.requests.total() == asked


def test_known_model_is_pulled_at_its_pinned_commit(hub, monkeypatch):
    known = "Qwen/Qwen2.5-0.5B-Instruct"
    hub.name, hub.commit = known, "7ae557604adf67be50417f59c2c2f167def9a775"
    pulled = pull_model(known)
    assert pulled.revision == KNOWN_MODELS[known].revision == hub.commit
    assert pulled.licence == "Apache-2.0"
    assert f"/api/models/{known}/revision/{hub.commit}" in hub.requests


def test_damaged_download_is_an_error_and_pulled_again(hub):
    pulled = pull_model(NAME)
    (pulled.path / "tokenizer.json").write_text("{}")
    with pytest.raises(
        ModelError, match=r"is damaged \(tokenizer.json has .*\); run: ticket-etl model pull acme/tiny$"
    ):
        find_model(NAME)
    assert pull_model(NAME) == pulled == find_model(NAME)


def test_make_default_writes_the_configuration(hub):
    pull_model(NAME, make_default=True)
    assert tomllib.loads(user_config_path().read_text())["model"] == NAME
    assert [model.name for model in list_models() if model.default] == [NAME]


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "RepoNotFound", "no such public model; check the name"),
        (404, "RevisionNotFound", "no such revision of it; check --revision"),
        (403, "GatedRepo", "access is gated; accept its terms at .*/acme/tiny and set HF_TOKEN"),
        (429, "", "answers 429 .too many requests.; wait some minutes"),
        (503, "", "is down .status 503.; try again later"),
        (418, "", "answers with status 418"),
    ],
)
def test_refusing_hub_is_one_line_with_the_way_out(hub, status, code, words):
    hub.status, hub.error_code = status, code
    with pytest.raises(ModelError, match=f"^cannot get acme/tiny: .*{words}") as raised:
        pull_model(NAME)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 7
    assert hub.requests.total() <= 3
    assert_not_installed()


def test_passing_refusal_is_tried_again(hub, monkeypatch):
    hub.status = 429

    def wait(seconds: float) -> None:
        hub.status = 200

    monkeypatch.setattr("ticket_etl.models.hub.time.sleep", wait)
    assert pull_model(NAME).revision == COMMIT


def test_offline_setting_is_respected_and_named(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set; unset it for the download"):
        pull_model(NAME)
    assert hub.requests.total() == 0
    assert_not_installed()


def test_unreachable_hub_is_one_line_with_the_way_out(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        ModelError, match=r"the connection to http://127.0.0.1:9 failed .*; check the network and try again, or"
    ):
        pull_model(NAME)
    assert_not_installed()


def test_broken_download_is_no_model_and_the_next_pull_finishes_it(hub):
    hub.cut = {"model.safetensors"}
    with pytest.raises(ModelError, match=r"^cannot get acme/tiny: "):
        pull_model(NAME)
    assert_not_installed()
    hub.cut = set()
    config_requests = hub.requests[f"/{NAME}/resolve/{COMMIT}/config.json"]
    assert pull_model(NAME) == find_model(NAME)
    assert hub.requests[f"/{NAME}/resolve/{COMMIT}/config.json"] <= config_requests + 1
    assert not [path for path in find_model(NAME).path.parent.iterdir() if path.suffix in {".tmp", ".partial"}]


def test_download_that_differs_from_what_was_announced_is_refused(hub):
    hub.wrong = {"model.safetensors"}
    with pytest.raises(ModelError, match=r"the download of acme/tiny is not whole \(model.safetensors\); run the same"):
        pull_model(NAME)
    assert_not_installed()
    hub.wrong = set()
    assert pull_model(NAME).revision == COMMIT


def test_model_without_safetensors_is_refused_before_the_download(hub):
    del hub.files["model.safetensors"], hub.files["consolidated.safetensors"]
    with pytest.raises(ModelError, match="has no safetensors weights on the hub, and pickle is not loaded"):
        pull_model(NAME)
    assert not any("/resolve/" in path for path in hub.requests)


def test_model_of_another_kind_is_refused(hub):
    hub.files["config.json"] = json.dumps({"architectures": ["BartModel"], "is_encoder_decoder": True}).encode()
    with pytest.raises(ModelError, match=r"acme/tiny is an encoder-decoder model \(BartModel\)"):
        pull_model(NAME)
    assert_not_installed()


@pytest.mark.parametrize("name", ["tiny", "acme/tiny/more", "../tiny", "acme/ti ny", ""])
def test_name_that_the_hub_cannot_have_is_refused(no_network, name):
    with pytest.raises(ModelError, match="cannot be pulled; name smollm2, minilm or a hub model as organisation/model"):
        pull_model(name)


def test_model_that_was_never_pulled_names_the_command(no_network):
    with pytest.raises(ModelError, match=r"is not installed; run: ticket-etl model pull acme/tiny$"):
        find_model(NAME)
    with pytest.raises(ModelError, match=r"run: ticket-etl model pull acme/tiny --revision 0123456$"):
        find_model(f"{NAME}@0123456")


def test_encoder_is_pulled_with_what_decides_its_vectors(tiny_encoder, monkeypatch):
    """The pooling lies in a folder of its own: it comes along, and a change of it is damage like any other."""
    files = {path.relative_to(tiny_encoder).as_posix(): path.read_bytes() for path in tiny_encoder.rglob("*.*")}
    with serve(files | {"onnx/config.json": b"{}", "1_Pooling/pytorch_model.bin": b"pickle"}, monkeypatch):
        pulled = pull_model(NAME)
    assert pulled.kind == "encoder"
    assert read_pooling(pulled) == read_pooling(find_model(str(tiny_encoder)))
    assert {path.relative_to(pulled.path).as_posix() for path in pulled.path.rglob("*.*")} == {
        *files,
        "ticket-etl-model.json",
    }
    assert find_model(NAME) == pulled
    assert [model.kind for model in list_models() if model.name == NAME] == ["encoder"]
    config = pulled.path / "1_Pooling" / "config.json"
    config.write_text(config.read_text().replace("mean", "MEAN"))
    with pytest.raises(ModelError, match=r"is damaged \(1_Pooling/config.json has changed\)"):
        find_model(NAME)
    assert [path.name for path in pulled.path.parent.iterdir() if path.suffix == ".tmp"] == []


def test_encoder_with_a_further_module_is_not_installed(tiny_encoder, monkeypatch):
    write_modules(tiny_encoder, ["Transformer", "Pooling", "Dense"])
    files = {path.relative_to(tiny_encoder).as_posix(): path.read_bytes() for path in tiny_encoder.rglob("*.*")}
    with serve(files, monkeypatch), pytest.raises(ModelError, match=r"acme/tiny has a module .*Dense in modules\.json"):
        pull_model(NAME)
    assert_not_installed()


def assert_not_installed() -> None:
    with pytest.raises(ModelError, match="is not installed"):
        find_model(NAME)
    assert list(installed.installed_names()) == []
