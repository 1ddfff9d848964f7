"""Writing the default model into the user's configuration, keeping what the user wrote."""

import tomllib

import pytest

from ticket_etl.errors import UsageError
from ticket_etl.models import default_model, user_config_path
from ticket_etl.models.settings import set_default_model


def write_config(text: str) -> None:
    path = user_config_path()
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def test_without_a_file_the_embedded_model_is_the_default():
    assert default_model() == "smollm2"


def test_file_and_folder_are_made():
    path = set_default_model("acme/tiny")
    assert path == user_config_path()
    assert path.read_text() == 'model = "acme/tiny"\n'
    assert default_model() == "acme/tiny"


def test_other_keys_tables_and_remarks_are_kept():
    write_config('# mine\nseed = 7\n\n[classify]\nmodel = "other"  # not this one\n')
    set_default_model("acme/tiny")
    text = user_config_path().read_text()
    assert text == 'model = "acme/tiny"\n# mine\nseed = 7\n\n[classify]\nmodel = "other"  # not this one\n'


def test_earlier_choice_is_replaced_in_its_place():
    write_config("seed = 7\nmodel = 'old'  # why\nquiet = true\n")
    set_default_model('C:\\models\\"x" é')
    assert tomllib.loads(user_config_path().read_text("utf-8")) == {
        "seed": 7,
        "model": 'C:\\models\\"x" é',
        "quiet": True,
    }
    assert "# why" in user_config_path().read_text("utf-8")
    assert len(list(user_config_path().parent.iterdir())) == 1


def test_linked_file_stays_linked_and_keeps_its_permissions(tmp_path):
    write_config("seed = 7\n")
    real = user_config_path().rename(tmp_path / "dotfile.toml")
    real.chmod(0o600)
    user_config_path().symlink_to(real)
    set_default_model("acme/tiny")
    assert user_config_path().is_symlink()
    assert tomllib.loads(real.read_text()) == {"seed": 7, "model": "acme/tiny"}
    assert real.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ['"model" = "old"\n', 'model = """\nold"""\n', "model = [\n1]\n"])
def test_spelling_that_cannot_be_changed_safely_is_left_alone(text):
    write_config(text)
    with pytest.raises(UsageError, match='write model = "acme/tiny" there yourself'):
        set_default_model("acme/tiny")
    assert user_config_path().read_text() == text


@pytest.mark.parametrize("content", [b"model = \n", b"\xff\xfe"])
def test_unreadable_file_is_a_usage_error(content):
    write_config("")
    user_config_path().write_bytes(content)
    for call in (default_model, lambda: set_default_model("acme/tiny")):
        with pytest.raises(UsageError, match=r"config.toml.*; mend or remove it$") as raised:
            call()
        assert raised.value.exit_code == 2
    assert user_config_path().read_bytes() == content


def test_folder_that_takes_no_files_is_a_usage_error(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TICKET_ETL_CONFIG_HOME", str(tmp_path / "file" / "config"))
    with pytest.raises(UsageError, match="Not a directory"):
        set_default_model("acme/tiny")
