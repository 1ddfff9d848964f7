"""The labels a ticket can get: reading label files, and refusing those that cannot work.

A label file is TOML: one `[[label]]` table per label with `name`, optional `description` and optional `examples`
(ticket texts), and an optional `[prompt]` table with `system` and `instruction`. How labels become tokens is the
business of `prompt` and `trie`; this module knows names only.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ticket_etl.errors import UsageError

DEFAULT_SYSTEM = "You sort customer support tickets."
DEFAULT_INSTRUCTION = "Read the support ticket and choose the one label that fits it best. Answer with the label alone."


@dataclass(frozen=True)
class Label:
    """One label: the name that is written to OUT, and what the model is told about it."""

    name: str
    description: str = ""
    examples: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """What stands for the label where texts are compared: its name with its description, and its examples."""
        return (f"{self.name}: {self.description}" if self.description else self.name, *self.examples)


@dataclass(frozen=True)
class LabelSet:
    """Labels in the order of their file, with the words of the prompt around them.

    The order decides two things only: how the prompt lists the labels, and who wins an exact tie (the first).

    Raises:
        UsageError: fewer than two labels, a blank name, or one name twice.
    """

    labels: tuple[Label, ...]
    system: str = DEFAULT_SYSTEM
    instruction: str = DEFAULT_INSTRUCTION

    def __post_init__(self) -> None:
        names = self.names
        if len(names) < 2:
            raise UsageError(f"a label set needs at least two labels to choose between, this one has {len(names)}")
        for number, name in enumerate(names, start=1):
            if not name.strip():
                raise UsageError(f"label {number} has a blank name; give it a word that stands for it")
            if name != name.strip():
                raise UsageError(f"label {name!r} begins or ends with white space; remove it")
            if name in names[: number - 1]:
                raise UsageError(f"label {name!r} is listed twice; remove one of them")

    @property
    def names(self) -> tuple[str, ...]:
        """The label names, in file order."""
        return tuple(label.name for label in self.labels)


def load_labels(path: Path | None) -> LabelSet:
    """Read a label file, or the built-in set if `path` is None.

    Raises:
        UsageError: the file is missing, not TOML, or not a usable label set; the message names the file.
    """
    if path is None:
        text = resources.files("ticket_etl").joinpath("default_labels.toml").read_text(encoding="utf-8")
        return parse_labels(tomllib.loads(text))
    try:
        return parse_labels(tomllib.loads(path.read_bytes().decode("utf-8-sig")))
    except OSError as error:
        raise UsageError(f"cannot read label file {path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"label file {path} is not valid TOML in UTF-8: {error}") from error
    except UsageError as error:
        raise UsageError(f"label file {path}: {error}") from error


def parse_labels(data: Mapping[str, Any]) -> LabelSet:
    """Turn the tables of a label file into a `LabelSet`.

    >>> parse_labels({"label": [{"name": "billing"}, {"name": "bug", "description": "a defect"}]}).names
    ('billing', 'bug')

    Raises:
        UsageError: an unknown key, a value of the wrong type, or labels that `LabelSet` refuses.
    """
    _refuse_unknown(data, {"label", "prompt"}, "the label file")
    tables = data.get("label", [])
    prompt = data.get("prompt", {})
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError("labels are given as [[label]] tables, each with a name")
    if not isinstance(prompt, dict):
        raise UsageError("[prompt] is a table with `system` and `instruction`")
    _refuse_unknown(prompt, {"system", "instruction"}, "[prompt]")
    return LabelSet(
        labels=tuple(_parse_label(table, number) for number, table in enumerate(tables, start=1)),
        system=_text(prompt.get("system", DEFAULT_SYSTEM), "prompt.system"),
        instruction=_text(prompt.get("instruction", DEFAULT_INSTRUCTION), "prompt.instruction"),
    )


def _parse_label(table: Mapping[str, Any], number: int) -> Label:
    where = f"label {number}"
    _refuse_unknown(table, {"name", "description", "examples"}, where)
    if "name" not in table:
        raise UsageError(f"{where} has no name")
    examples = table.get("examples", [])
    if not isinstance(examples, list):
        raise UsageError(f"{where}: examples must be a list of texts")
    return Label(
        name=_text(table["name"], f"{where}: name"),
        description=_text(table.get("description", ""), f"{where}: description"),
        examples=tuple(_text(example, f"{where}: example") for example in examples),
    )


def _refuse_unknown(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise UsageError(f"{where} has an unknown key {key!r}; known are {', '.join(sorted(known))}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where} must be text, not {type(value).__name__}")
    return value
