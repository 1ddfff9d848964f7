"""One line into one record: which lines are accepted, and the reason given for the others.

a record is a JSON object in UTF-8 on one line; spaces, tabs and a carriage return around it do not matter
duplicate keys          the last one counts, as in Python and JavaScript
NaN, Infinity           refused; so are numbers beyond the range of a double, such as 1e999
lone surrogates         refused ("\\ud800" without its partner is no text)
integers                exact, up to 4300 digits; longer ones are refused
nesting                 up to 256 levels
"""

import json
import math
import re
import sys
from itertools import chain
from typing import Any, NoReturn

MAX_NESTING = 256
MAX_DIGITS = 4300
Record = dict[str, Any]

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


class BadRecordError(ValueError):
    """Why a line is no record."""


def _refuse_constant(name: str) -> NoReturn:
    raise BadRecordError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadRecordError(f"the number {text[:40]} is beyond the range of a double")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def is_blank(line: bytes) -> bool:
    """Say whether a line holds nothing but white space."""
    return not line.strip(b" \t\r")


def parse_record(line: bytes) -> Record:
    """Give the line's record, or raise BadRecordError."""
    try:
        text = line.decode()
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise BadRecordError(f"byte {error.start + 1} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadRecordError(f"not JSON: {error.msg} at character {error.colno}") from None
    except RecursionError:
        raise BadRecordError(f"nested deeper than {MAX_NESTING} levels") from None
    except BadRecordError:
        raise
    except ValueError:  # the interpreter's own limit on the digits of an integer
        raise BadRecordError(f"an integer of more than {sys.get_int_max_str_digits() or MAX_DIGITS} digits") from None
    if line.count(b"{") + line.count(b"[") > MAX_NESTING and _depth(value) > MAX_NESTING:
        raise BadRecordError(f"nested deeper than {MAX_NESTING} levels")
    if type(value) is not dict:
        raise BadRecordError(f"{_KINDS[type(value)]}, not a JSON object")
    if _SURROGATE.search(text) and not _encodable(value):
        raise BadRecordError("a lone surrogate escape, which is no text")
    return value


def advice_for(line: bytes, reason: str) -> str:
    """Say what the writer of a bad first line probably meant."""
    start = line.lstrip(b" \t\r")[:1]
    if start == b"[":
        return "for a JSON array, write one object per line: jq -c '.[]'"
    if start == b"{" and line.strip(b" \t\r") == b"{":
        return "for pretty-printed JSON, write one object per line: jq -c ."
    if b"\r" in line.strip(b"\r") and reason.startswith("not JSON: Extra data"):
        return "lines must end with a newline, not with a carriage return alone"
    return "fix the line, or keep bad lines apart with --bad-records quarantine"


def _depth(value: Any) -> int:
    """Measure nesting without recursion: {"a": [1]} -> 2."""
    depth, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        depth += 1
        level = list(chain.from_iterable(v.values() if isinstance(v, dict) else v for v in level))
    return depth


def _encodable(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def without_keys(line: bytes, keys: frozenset[str]) -> bytes:
    """Cut top-level members out of a valid record's bytes, leaving the rest: ({"a":1, "b":2}, {"a"}) -> { "b":2}."""
    text = line.decode()
    start, end = text.index("{"), text.rindex("}")
    kept: list[str] = []
    at = _skip_space(text, start + 1)
    begin = start + 1
    while at < end:
        key, at = json.decoder.scanstring(text, at + 1)  # type: ignore[attr-defined]
        at = _skip_space(text, _skip_space(text, at) + 1)  # the colon
        _, at = _DECODER.raw_decode(text, at)
        if key not in keys:
            kept.append(text[begin:at])
        begin = _skip_space(text, at) + 1  # the comma, or the closing brace
        at = _skip_space(text, begin) if begin <= end else end
    return (text[: start + 1] + ",".join(kept) + text[end:]).encode()


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\r":
        at += 1
    return at


def with_members(line: bytes, members: bytes) -> bytes:
    """Insert rendered members before the closing brace: ({"a":1}, "b":2) -> {"a":1,"b":2}. The rest stays as it is."""
    end = line.rindex(b"}")
    head = line[:end]
    comma = b"" if head.rstrip(b" \t\r").endswith(b"{") else b","
    return head + comma + members + line[end:]
