"""Phrase templates: `[a|b]` picks one branch (nestable), `{slot}` takes a fact of the ticket."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

PHRASES = Path(__file__).with_name("phrases")

# A compiled template: text, ("slot", name) or ("choice", branches), in order.
Node = str | tuple[str, Any]

_TOKEN = re.compile(r"[\[\]|]|\{\w+\}")


@cache
def load(name: str) -> dict[str, Any]:
    """Read one phrase file."""
    return tomllib.loads((PHRASES / f"{name}.toml").read_text(encoding="utf-8"))


@cache
def compiled(template: str) -> tuple[Node, ...]:
    """Parse a template once; a stray bracket is an error in the phrase files."""
    stack: list[list[list[Node]]] = [[[]]]
    position = 0
    for match in _TOKEN.finditer(template):
        if match.start() > position:
            stack[-1][-1].append(template[position : match.start()])
        position = match.end()
        token = match.group()
        if token == "[":
            stack.append([[]])
        elif token == "|" and len(stack) > 1:
            stack[-1].append([])
        elif token == "]" and len(stack) > 1:
            branches = tuple(tuple(branch) for branch in stack.pop())
            stack[-1][-1].append(("choice", branches))
        elif token[0] == "{":
            stack[-1][-1].append(("slot", token[1:-1]))
        elif token == "|":  # outside brackets a plain character
            stack[-1][-1].append(token)
        else:
            raise ValueError(f"stray {token!r} in phrase {template!r}")
    if len(stack) != 1:
        raise ValueError(f"unclosed bracket in phrase {template!r}")
    stack[0][0].append(template[position:])
    return tuple(stack[0][0])


def expand(template: str, rng: Random, fact: Callable[[str], str]) -> str:
    """Fill in one template."""
    out: list[str] = []
    _walk(compiled(template), rng, fact, out)
    return "".join(out).replace("..", ".")  # a date may end in a full stop of its own


def _walk(nodes: tuple[Node, ...], rng: Random, fact: Callable[[str], str], out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
        elif node[0] == "slot":
            out.append(fact(node[1]))
        else:
            _walk(rng.choice(node[1]), rng, fact, out)


_PIECE = re.compile(r"\d|[^\W\d_]{1,9}|[^\s\w]{1,2}|_|\n")


def rough_tokens(text: str) -> int:
    """Guess the token count of a text: digits and punctuation weigh as much as words."""
    return len(_PIECE.findall(text))
