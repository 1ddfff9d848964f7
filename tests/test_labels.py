"""Label files: what is read, and that every refusal says what is wrong and where."""

import codecs
from pathlib import Path

import pytest

from ticket_etl.errors import UsageError
from ticket_etl.labels import DEFAULT_INSTRUCTION, DEFAULT_SYSTEM, Label, LabelSet, load_labels, parse_labels

TWO = '[[label]]\nname = "billing"\n[[label]]\nname = "bug"\n'


def write(folder: Path, content: str | bytes) -> Path:
    path = folder / "labels.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path) -> str:
    """The message of a refused label file; it is one line."""
    with pytest.raises(UsageError) as caught:
        load_labels(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_file_in_full(tmp_path: Path) -> None:
    """Names, descriptions, examples and prompt come as written, in file order."""
    text = """
        [prompt]
        system = "You sort."
        instruction = "Choose one."
        [[label]]
        name = "bug"
        description = "a defect"
        examples = ["it crashes", "error 500"]
        [[label]]
        name = "billing"
    """
    assert load_labels(write(tmp_path, text)) == LabelSet(
        (Label("bug", "a defect", ("it crashes", "error 500")), Label("billing")), "You sort.", "Choose one."
    )


def test_prompt_has_defaults(tmp_path: Path) -> None:
    labels = load_labels(write(tmp_path, TWO))
    assert labels.names == ("billing", "bug")
    assert (labels.system, labels.instruction) == (DEFAULT_SYSTEM, DEFAULT_INSTRUCTION)


def test_built_in_set_is_usable() -> None:
    labels = load_labels(None)
    assert len(labels.names) >= 2
    assert all(label.description for label in labels.labels)


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    assert load_labels(write(tmp_path, codecs.BOM_UTF8 + TWO.encode())).names == ("billing", "bug")


def test_windows_line_ends(tmp_path: Path) -> None:
    assert load_labels(write(tmp_path, TWO.replace("\n", "\r\n"))).names == ("billing", "bug")


def test_names_beyond_ascii(tmp_path: Path) -> None:
    names = ("R\u00fcckgabe", "\u8bf7\u6c42\u9000\u6b3e", "\U0001f41b bug")
    text = "".join(f'[[label]]\nname = "{name}"\n' for name in names)
    assert load_labels(write(tmp_path, text)).names == names


def test_missing_file_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path / "none.toml")
    assert str(tmp_path / "none.toml") in message
    assert "No such file" in message


def test_folder_is_refused(tmp_path: Path) -> None:
    assert f"cannot read label file {tmp_path}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: billing\n", ["not valid TOML", "line 1"]),
        ('[[label]]\nname = "a"\n[[label]\nname = "b"\n', ["not valid TOML", "line 3"]),
        (TWO.encode("utf-16"), ["not valid TOML in UTF-8"]),
        ('[[label]]\nname = "R\u00fcckgabe"\n'.encode("latin-1"), ["not valid TOML in UTF-8"]),
        ("", ["at least two labels", "this one has 0"]),
        ('[[label]]\nname = "only"\n', ["at least two labels", "this one has 1"]),
        (TWO + "[[labels]]\n", ["unknown key 'labels'", "label, prompt"]),
        (TWO + 'descripton = "typo"\n', ["label 2", "unknown key 'descripton'", "description"]),
        (TWO + '[prompt]\nsytem = "typo"\n', ["[prompt]", "unknown key 'sytem'", "system"]),
        (TWO + '[[label]]\ndescription = "nameless"\n', ["label 3 has no name"]),
        (TWO + '[[label]]\nname = ""\n', ["label 3 has a blank name"]),
        (TWO + '[[label]]\nname = " \\t"\n', ["label 3 has a blank name"]),
        (TWO + '[[label]]\nname = "late "\n', ["'late '", "white space"]),
        (TWO + '[[label]]\nname = "billing"\n', ["'billing' is listed twice"]),
        (TWO + "[[label]]\nname = 3\n", ["label 3: name must be text, not int"]),
        (TWO + "description = true\n", ["label 2: description must be text, not bool"]),
        (TWO + 'examples = "one"\n', ["label 2: examples must be a list"]),
        (TWO + 'examples = ["one", 2]\n', ["label 2: example must be text, not int"]),
        (TWO + "[prompt]\nsystem = 1\n", ["prompt.system must be text, not int"]),
        (TWO + '[prompt]\ninstruction = ["a"]\n', ["prompt.instruction must be text, not list"]),
        ('label = "billing"\n', ["[[label]] tables"]),
        ('label = ["billing", "bug"]\n', ["[[label]] tables"]),
        ('[label]\nname = "billing"\n', ["[[label]] tables"]),
        ('prompt = "hello"\n' + TWO, ["[prompt] is a table"]),
    ],
)
def test_refusals_say_what_and_where(tmp_path: Path, content: str | bytes, says: list[str]) -> None:
    path = write(tmp_path, content)
    message = refusal(path)
    assert str(path) in message
    assert "\n" not in message
    for part in says:
        assert part in message


def test_label_sets_made_in_code_are_checked_too() -> None:
    with pytest.raises(UsageError, match="'a' is listed twice"):
        LabelSet((Label("a"), Label("b"), Label("a")))


def test_parsing_does_not_change_its_data() -> None:
    data = {"label": [{"name": "a", "examples": ["x"]}, {"name": "b"}]}
    parse_labels(data)
    assert data == {"label": [{"name": "a", "examples": ["x"]}, {"name": "b"}]}
