"""The untidiness of typed text: lower case, missing punctuation, typos, shouting, emoji."""

from __future__ import annotations

import re
from random import Random

_CODE_LIKE = re.compile(r"[\d@/_<>|{}]|\.\w")
_SHORT = (
    (" please", " pls"),
    (" because", " cause"),
    (" you ", " u "),
    (" are ", " r "),
    (" your ", " ur "),
    (" thanks", " thx"),
    (" tomorrow", " tmrw"),
    (" minutes", " min"),
    (" and ", " & "),
)


def casual(text: str, rng: Random) -> str:
    """Lower-case a text except for codes and addresses, and drop some of the punctuation."""
    words = [word if _CODE_LIKE.search(word) else word.lower() for word in text.split(" ")]
    text = " ".join(words)
    if rng.random() < 0.6:
        text = text.replace("'", "")
    if rng.random() < 0.3:
        for long, short in rng.sample(_SHORT, 3):
            text = text.replace(long, short)
    if rng.random() < 0.5 and text.endswith("."):
        text = text[:-1]
    if rng.random() < 0.2:
        text = text.replace(". ", rng.choice((" ", ", ", "... ")))
    if rng.random() < 0.2:
        text = text.replace("?", rng.choice(("", "??", " ?")))
    return text


def shout(text: str) -> str:
    """Upper-case everything but codes and addresses."""
    return " ".join(word if _CODE_LIKE.search(word) else word.upper() for word in text.split(" "))


def typos(text: str, rng: Random, share: float) -> str:
    """Misspell a share of the longer words."""
    words = text.split(" ")
    for index, word in enumerate(words):
        if len(word) > 4 and word.isalpha() and rng.random() < share:
            words[index] = _misspell(word, rng)
    return " ".join(words)


def _misspell(word: str, rng: Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    kind = rng.randrange(3)
    if kind == 0:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == 1:
        return word[:at] + word[at + 1 :]
    return word[:at] + word[at] + word[at:]
