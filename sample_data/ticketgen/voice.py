"""One ticket's phrases: the language's general pools together with one scenario of one label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from ticketgen.facts import Facts
from ticketgen.grammar import load, rough_tokens

LANGUAGES = {"de": 34, "fr": 22, "es": 18, "pt": 13, "it": 7, "nl": 6}
ENGLISH_FORM = {"name": "Name", "company": "Company", "email": "E-mail", "topic": "Topic", "message": "Message"}


@cache
def scenarios(lang: str, label: str) -> list[dict[str, Any]]:
    """List the scenarios of a label in a language."""
    if lang == "en":
        return load(f"en_{label}")["scenario"]
    return [scenario for scenario in load(f"intl_{lang}")["scenario"] if scenario["label"] == label]


def lower_first(sentence: str) -> str:
    """Let a sentence go on after a colon; the word I keeps its capital."""
    if sentence.startswith(("I ", "I'")) or sentence[1:2].isupper():
        return sentence
    return sentence[:1].lower() + sentence[1:]


@dataclass(frozen=True)
class Voice:
    """The pools that the ticket draws from; `own` is the scenario, `common` the language's general file."""

    lang: str
    label: str
    own: dict[str, Any]
    common: dict[str, Any]
    by_label: dict[str, list[str]]

    @classmethod
    def choose(cls, rng: Random, lang: str, label: str) -> Voice:
        common = load("en_common") if lang == "en" else load(f"intl_{lang}")
        own = rng.choice(scenarios(lang, label))
        by_label: dict[str, list[str]] = {}
        if lang == "en":
            skip = common["skip"].get(own["id"], ())
            by_label = {key: [] if key in skip else pool for key, pool in common["label"][label].items()}
        return cls(lang, label, own, common, by_label)

    @property
    def scenario(self) -> str:
        return self.own.get("id", "")

    @property
    def form(self) -> dict[str, str]:
        return ENGLISH_FORM if self.lang == "en" else self.common["form"]

    def agent_says(self, facts: Facts, count: int) -> str:
        """Compose an agent's answer of `count` sentences, the first of them a thank-you or the like."""
        english = self.lang == "en"
        first = self.common["agent_open"] if english else self.common["agent"][:1]
        rest = self.common["agent_generic"] + self.by_label["agent"] if english else self.common["agent"][1:]
        return " ".join([facts.pick(first), *map(facts.say, facts.rng.sample(rest, min(count - 1, len(rest))))])

    def questions(self) -> list[str]:
        """List the question-and-answer pairs for a chat, those of the label first."""
        if self.lang == "en":
            return self.by_label["qa"] + self.common["chat_qa"]["pairs"]
        return self.common["qa"]

    def _optional(self, facts: Facts) -> Iterator[tuple[int, list[str]]]:
        """Yield (place in the text, pool) for sentences that may follow the opening, likeliest first."""
        first = [(2, self.own["detail"]), (7, self.own["ask"])]
        facts.rng.shuffle(first)
        yield from first
        yield 2, self.own["detail"]
        rest = [(2, self.own["detail"])]
        if self.lang == "en":
            relaxed = self.label not in ("security", "refund") and facts.rng.random() < 0.25
            rest += [(3, self.by_label["tried"])] * 2
            rest += (
                [(8, self.common["relaxed"])]
                if relaxed
                else [(4, self.by_label["impact"]), (8, self.common["urgency"])]
            )
            rest += [(5, self.common[key]) for key in ("history", "history", "mood")]
            rest += [(0, self.common["about"]), (9, self.common["thanks"])]
        else:
            rest += [(5, self.common["extra"])] * 4 + [(8, self.common["urgency"]), (9, self.common["thanks"])]
        facts.rng.shuffle(rest)
        yield from rest

    def sentences(self, facts: Facts, budget: int, opening: bool = True) -> list[str]:
        """Compose the customer's prose: the request, then as many fitting sentences as the budget allows."""
        placed: list[tuple[int, str]] = [(1, facts.pick(self.own["open"]))] if opening else []
        spent = sum(rough_tokens(text) for _, text in placed)
        used: dict[int, set[str]] = {}
        for place, pool in self._optional(facts):
            if spent + 8 > budget:
                break
            seen = used.setdefault(id(pool), set())
            if len(seen) >= len(pool):
                continue
            text = facts.pick(pool)
            if text in seen:
                continue
            seen.add(text)
            placed.append((place, text))
            spent += rough_tokens(text)
        placed.sort(key=lambda item: item[0])
        said = [text[:1].upper() + text[1:] for _, text in placed]
        if opening and self.lang == "en" and facts.rng.random() < 0.12:
            lead = facts.pick(self.common["lead"])
            said[0] = lead + (lower_first(said[0]) if lead.endswith(": ") else said[0])
        return said
