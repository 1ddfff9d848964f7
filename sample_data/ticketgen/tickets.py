"""Plans ticket number i: label, language, channel, length; every ticket depends on the seed and i alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

from ticketgen.blocks import NO_BLOCK
from ticketgen.chat import chat
from ticketgen.compose import Style, email, phone_note, web
from ticketgen.facts import Facts
from ticketgen.grammar import load
from ticketgen.voice import LANGUAGES, Voice

LABELS = {
    "billing": 17,
    "refund": 13,
    "shipping": 16,
    "account": 14,
    "bug": 18,
    "security": 7,
    "feature": 8,
    "cancellation": 9,
}
CHANNELS = {"email": 45, "chat": 24, "web": 21, "phone-note": 10}
START = datetime(2025, 3, 3, 6, 0, tzinfo=UTC)
SPACING_S = 97

BLANK_SHARE = 0.016
DUPLICATE_SHARE = 0.03
FOREIGN_SHARE = 0.085
LONG_SHARE = 0.005
MEDIAN, SIGMA = 56, 0.75  # of the log-normal target length, in tokens
ON_SCANNERS = {"crash-on-open", "double-scan", "battery", "stolen-device", "device-login", "offline"}
BLANKS = (None, None, None, "", "", "", " ", "\n\n", "\t", "   \n ", "\u00a0")

# Rare kinds come at fixed places, so that a sample of a few hundred rows has them too.
PERIOD = 600
GIANT_AT, INJECTIONS_AT = 311, (137, 423)


@dataclass(frozen=True)
class Ticket:
    """One row of the sample."""

    id: str
    created: datetime
    channel: str
    lang: str
    subject: str | None
    text: str | None
    gold: str | None


@dataclass(frozen=True)
class Content:
    """What a customer sent; a duplicate ticket repeats all of it."""

    channel: str
    lang: str
    subject: str | None
    text: str | None
    gold: str | None


def ticket(seed: int, index: int) -> Ticket:
    """Make ticket number `index` of a seed."""
    content = _content(seed, index)
    created = START + timedelta(seconds=SPACING_S * index + Random(f"{seed}/{index}/time").randrange(SPACING_S))
    return Ticket(
        f"T-{10001 + index}", created, content.channel, content.lang, content.subject, content.text, content.gold
    )


def _weighted(rng: Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _content(seed: int, index: int) -> Content:
    rng = Random(f"{seed}/{index}")
    place = index % PERIOD
    special = place == GIANT_AT or place in INJECTIONS_AT
    roll = rng.random()
    if not special and roll < BLANK_SHARE:
        subject = rng.choice((None, None, None, "", "(no subject)", "Re:"))
        return Content(_weighted(rng, CHANNELS), "en", subject, rng.choice(BLANKS), None)
    if not special and roll < BLANK_SHARE + DUPLICATE_SHARE and index > 0:
        return _content(seed, max(0, index - rng.randint(1, 80)))
    label = _weighted(rng, LABELS)
    budget = int(rng.lognormvariate(math.log(MEDIAN), SIGMA))
    if rng.random() < LONG_SHARE:
        budget = int(math.exp(rng.uniform(math.log(450), math.log(1300))))
    if place == GIANT_AT:
        budget = rng.randint(1440, 1470)
    budget = max(4, min(budget, 1470))
    channel = _weighted(rng, CHANNELS)
    if budget > 600:
        channel = rng.choice(("email", "web")) if label in ("bug", "security") else "email"
    elif channel == "phone-note" and (budget > 170 or special):
        channel = "web"
    foreign = channel != "phone-note" and not special and rng.random() < FOREIGN_SHARE / 0.9
    lang = _weighted(rng, LANGUAGES) if foreign else "en"
    if foreign:
        budget = int(budget / 1.4)  # common tokenizers split other languages finer than English
    created = START + timedelta(seconds=SPACING_S * index)
    return _write(rng, created, label, lang, channel, budget, _injection(index))


def _injection(index: int) -> str | None:
    """Give the places for it a text that tries to talk the model into another label, in turn."""
    block, place = divmod(index, PERIOD)
    if place not in INJECTIONS_AT:
        return None
    pool = load("en_common")["injection"]
    return pool[(block * len(INJECTIONS_AT) + INJECTIONS_AT.index(place)) % len(pool)]


def _write(
    rng: Random, created: datetime, label: str, lang: str, channel: str, budget: int, injection: str | None
) -> Content:
    facts = Facts(rng, created, lang)
    voice = Voice.choose(rng, lang, label)
    while budget > 250 and voice.scenario in NO_BLOCK:
        voice = Voice.choose(rng, lang, label)
    if voice.scenario in ON_SCANNERS:
        facts.fix("item", rng.choice(load("facts")["scanner"]))
    style = Style.draw(facts, channel)
    if budget < 11 and channel != "phone-note":
        text = style.apply(facts.pick(voice.own["subject"]), facts)
    else:
        writer = {"email": email, "chat": chat, "web": web, "phone-note": phone_note}[channel]
        text = writer(voice, facts, style, budget)
    if injection:
        facts.fix("wrong", rng.choice([other for other in LABELS if other != label]))
        text += "\n\n" + facts.say(injection)
    return Content(channel, lang, _subject(voice, facts, style, channel), text, label)


def _subject(voice: Voice, facts: Facts, style: Style, channel: str) -> str | None:
    rng = facts.rng
    if rng.random() < {"email": 0.03, "chat": 0.88, "web": 0.12, "phone-note": 0.45}[channel]:
        return None
    subject = facts.pick(voice.own["subject"])
    subject = subject[:1].upper() + subject[1:] if rng.random() < 0.5 else subject
    prefix = rng.choices(("", "Re: ", "Fwd: ", "AW: " if voice.lang == "de" else "RE: ", "URGENT: "), (84, 8, 2, 2, 2))[
        0
    ]
    return prefix + (style.apply(subject, facts) if style.casual or style.caps else subject)
