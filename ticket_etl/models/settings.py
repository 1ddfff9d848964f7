"""The user's own configuration file, as far as models go: which one is the default. This is its only writer."""

import json
import re
import tomllib
from pathlib import Path

from ticket_etl.atomic import replace_atomically
from ticket_etl.errors import OutputError, UsageError
from ticket_etl.models import places
from ticket_etl.models.embedded import DEFAULT

_MODEL_LINE = re.compile(r"""^model[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)
_FIRST_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)


def default_model() -> str:
    """Return the model that the user made the default, else the embedded default."""
    return str(_parse(_read(places.user_config_path())).get("model") or DEFAULT)


def set_default_model(name: str) -> Path:
    """Write `model = "NAME"` to the user's configuration, keep everything else in it, and return its path."""
    path = places.user_config_path()
    path = path.resolve()  # a linked file stays linked
    text = _read(path)
    changed = _with_model(text, name)
    if _parse_quietly(changed) != _parse(text) | {"model": name}:
        raise UsageError(f'cannot change the model in {path} and keep the rest; write model = "{name}" there yourself')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as stream:
            stream.write(changed.encode())
    except (OSError, OutputError) as error:
        raise UsageError(f"cannot write {path} ({error}); set TICKET_ETL_CONFIG_HOME elsewhere") from None
    return path


def _with_model(text: str, name: str) -> str:
    """Replace or add the key above the first table: 'seed = 1' -> 'model = "x"', 'seed = 1'."""
    table = _FIRST_TABLE.search(text)
    top, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    value = json.dumps(name, ensure_ascii=False)  # a JSON string is a TOML basic string
    changed, count = _MODEL_LINE.subn(lambda _: f"model = {value}", top, count=1)
    return (changed if count else f"model = {value}\n{top}") + rest


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}; mend or remove it") from None


def _parse(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{places.user_config_path()} is not TOML ({error}); mend or remove it") from None


def _parse_quietly(text: str) -> dict[str, object] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
