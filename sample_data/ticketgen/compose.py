"""Turns a voice into the text of an e-mail, chat, web form or phone note of about a wanted length."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ticketgen import noise
from ticketgen.blocks import NO_BLOCK, blocks_for
from ticketgen.facts import Facts
from ticketgen.grammar import load, rough_tokens
from ticketgen.voice import Voice, lower_first, scenarios

PROSE_LIMIT = 190  # the pools run dry beyond that; longer tickets get pasted material and quoted mails
UPSET = {"refund", "bug", "shipping", "security"}


@dataclass
class Style:
    """How tidily the writer types; applied to prose, never to pasted material."""

    casual: bool
    caps: bool
    typo_share: float
    emoji: bool

    @classmethod
    def draw(cls, facts: Facts, channel: str) -> Style:
        rng = facts.rng
        casual = rng.random() < {"email": 0.1, "chat": 0.55, "web": 0.18, "phone-note": 0.0}[channel]
        typo_share = rng.choice((0.02, 0.04, 0.09)) if rng.random() < 0.28 else 0.0
        emoji = rng.random() < (0.12 if channel == "chat" else 0.03)
        return cls(casual, channel != "phone-note" and rng.random() < 0.012, typo_share, emoji)

    def apply(self, text: str, facts: Facts) -> str:
        if self.typo_share:
            text = noise.typos(text, facts.rng, self.typo_share)
        if self.casual:
            text = noise.casual(text, facts.rng)
        return noise.shout(text) if self.caps else text


def paragraphs(sentences: list[str], facts: Facts, style: Style) -> str:
    """Join sentences, with a blank line now and then in longer texts."""
    groups: list[list[str]] = [[]]
    for sentence in sentences:
        if len(groups[-1]) >= 2 and len(sentences) > 4 and facts.rng.random() < 0.4:
            groups.append([])
        groups[-1].append(sentence)
    text = "\n\n".join(style.apply(" ".join(group), facts) for group in groups)
    if style.emoji:
        upset = facts.rng.random() < 0.5
        text += " " + facts.rng.choice(load("en_common")["emoji_neg" if upset else "emoji_pos"])
    return text


def aside(voice: Voice, facts: Facts) -> str:
    """Mention a second matter of another label; the first one stays the main request."""
    others = [label for label in load("en_common")["label"] if label != voice.label]
    other = facts.rng.choice(scenarios("en", facts.rng.choice(others)))
    return facts.pick(load("en_common")["also"]) + lower_first(facts.pick(other["open"]))


def foreign_quote(voice: Voice, facts: Facts) -> str:
    """Quote the same kind of request in another language, as a forwarded remark."""
    lang = facts.rng.choice(("de", "fr", "es"))
    scenario = facts.rng.choice(scenarios(lang, voice.label))
    name = {"de": "German", "fr": "French", "es": "Spanish"}[lang]
    quoted = f"{facts.say(facts.rng.choice(scenario['open']))} {facts.say(facts.rng.choice(scenario['ask']))}"
    return f'This is what our branch wrote, in {name}: "{quoted}"'


def pasted(voice: Voice, facts: Facts, budget: int) -> str:
    """Make one block of pasted material."""
    block = facts.rng.choice(blocks_for(voice.label, voice.scenario))
    return "\n".join(block(facts, budget))


def pastes_early(voice: Voice, facts: Facts, budget: int) -> bool:
    """Tell whether a technical ticket comes to its log or trace after a few sentences."""
    technical = voice.label in ("bug", "security") and voice.scenario not in NO_BLOCK
    return technical and budget > 58 and facts.rng.random() < 0.6


def email(voice: Voice, facts: Facts, style: Style, budget: int) -> str:
    """Write an e-mail: greeting, prose, closing, then signature, footer, quoted mails as space allows."""
    rng, common = facts.rng, voice.common
    polite = budget > 30 and rng.random() < 0.93
    body_budget = min(PROSE_LIMIT, budget - 14 if polite else budget)
    if budget > 105:
        body_budget = min(PROSE_LIMIT, int(budget * rng.uniform(0.35, 0.75)))
    if early := pastes_early(voice, facts, budget):
        body_budget = min(body_budget, int(budget * 0.4))
    sentences = voice.sentences(facts, body_budget)
    if voice.lang == "en" and budget > 55 and rng.random() < 0.05:
        sentences.append(aside(voice, facts))
    if voice.lang == "en" and budget > 70 and rng.random() < 0.02:
        sentences.append(foreign_quote(voice, facts))
    if voice.lang != "en" and rng.random() < 0.1:
        sentences.insert(0, facts.pick(common["prefix"]))
    quoting = budget - body_budget > (220 if early else 75) and rng.random() < 0.7
    if quoting and voice.lang == "en" and rng.random() < 0.6:
        sentences.insert(0, facts.pick(common["reply_opener"]))
    parts = [paragraphs(sentences, facts, style)]
    if polite:
        greeting = style.apply(facts.pick(common["greeting"]), facts)
        parts[0] = greeting + rng.choices(("\n\n", "\n", " "), (80, 12, 8))[0] + parts[0]
    spent = sum(rough_tokens(part) for part in parts) + 8
    if voice.scenario not in NO_BLOCK and budget - spent > 30:
        likely = 0.75 if voice.label in ("bug", "security", "feature") else 0.45
        if early or budget > 420 or rng.random() < likely:
            room = budget - spent
            size = room if not quoting else int(room * rng.uniform(0.35, 0.7))
            lead = facts.pick(load("en_common")["attached"]) if voice.lang == "en" else "---"
            parts.append(f"{lead}\n\n{pasted(voice, facts, min(size, 650))}")
            spent += rough_tokens(parts[-1])
    signature = rng.choice((facts("first"), facts("name")))
    if polite:
        signature = f"{facts.pick(common['closing'])}\n{signature}"
    if polite or rng.random() < 0.2:
        parts.append(signature)
    if polite and budget - spent > 22 and rng.random() < 0.5:
        parts[-1] += f"\n{facts('company')}" + (f"\n{facts('phone')}" if rng.random() < 0.5 else "")
        spent += 12
    if budget - spent > 12 and rng.random() < 0.4:
        footer = facts.pick(common["footer"])
        parts.append(rng.choice(("--\n", "", "________________\n")) + footer)
        spent += rough_tokens(footer)
    if quoting or budget - spent > 150:
        parts.append(thread(voice, facts, budget - spent))
    return "\n\n".join(parts)


def thread(voice: Voice, facts: Facts, budget: int) -> str:
    """Quote the earlier mails, newest first; each step back adds one more > to the lines."""
    rng, common = facts.rng, voice.common
    out: list[str] = []
    moment = facts.created
    depth = 0
    unit = rng.choice((">", "> "))
    while budget > 40 or depth < 1:
        depth += 1
        moment -= timedelta(days=rng.randint(1, 4), minutes=rng.randint(0, 400))
        facts.step_to(moment)
        if depth % 2:
            head = facts.pick(common["quote_head"])
            lines = [facts.say(_agent_hello(voice))]
            lines += ["", voice.agent_says(facts, rng.randint(2, 4)), ""]
            close = common.get("agent_close") or [f"{facts.pick(common['closing'])}\n{{agent}}"]
            lines += facts.pick(close).split("\n")
        else:
            head = facts.pick(common.get("quote_head_self", ["{name} <{email}>, {longdate}:"]))
            room = min(150, max(40, budget - 30))
            lines = [facts.pick(common["greeting"]), "", *voice.sentences(facts, room, opening=depth == 2), ""]
            if budget > 260 and voice.scenario not in NO_BLOCK:
                lines += pasted(voice, facts, min(budget - 180, 420)).split("\n")
            lines += [facts("first")]
        mark, outer = (unit * depth).rstrip(), (unit * (depth - 1)).rstrip()
        quoted = [outer, f"{outer} {head}".strip(), *(f"{mark} {line}".rstrip() for line in _flatten(lines))]
        out += quoted
        budget -= sum(rough_tokens(line) + 1 for line in quoted)
    return "\n".join(out).strip()


def _agent_hello(voice: Voice) -> str:
    return {
        "de": "Guten Tag {name},",
        "fr": "Bonjour {first},",
        "es": "Hola {first},",
        "pt": "Olá {first},",
        "it": "Buongiorno {first},",
        "nl": "Beste {first},",
    }.get(voice.lang, "[Hi|Hello|Dear] {first},")


def _flatten(lines: list[str]) -> list[str]:
    """Break lines at about 90 characters, as mail programs do when they quote."""
    out: list[str] = []
    for line in lines:
        for piece in line.split("\n"):
            while len(piece) > 95 and " " in piece[60:90]:
                cut = piece.rindex(" ", 60, 90)
                out.append(piece[:cut])
                piece = piece[cut + 1 :]
            out.append(piece)
    return out


def web(voice: Voice, facts: Facts, style: Style, budget: int) -> str:
    """Write a web form: `field: value` lines around the message, or the bare message."""
    rng, form = facts.rng, voice.form
    if budget < 45 or rng.random() < 0.25:
        fields: list[str] = []
    else:
        fields = [f"{form['name']}: {facts('name')}", f"{form['email']}: {facts('email')}"]
        if rng.random() < 0.5:
            fields.append(f"{form['company']}: {facts('company')}")
        if voice.label in ("shipping", "refund") and rng.random() < 0.6:
            fields.append(f"{'Order' if voice.lang == 'en' else 'No.'}: {facts('order')}")
        if voice.label == "bug" and rng.random() < 0.6:
            fields.append(f"Version: {facts('version')} / {facts(rng.choice(('os', 'browser')))}")
        if voice.lang == "en" and rng.random() < 0.5:
            topics = load("en_common")["topic"]
            fields.append(f"{form['topic']}: {rng.choice(topics)}")
        rng.shuffle(fields)
    spent = sum(rough_tokens(field) + 1 for field in fields)
    room = budget - spent
    if pastes_early(voice, facts, budget):
        room = int(room * 0.45)
    sentences = voice.sentences(facts, min(PROSE_LIMIT, max(10, room)))
    if voice.lang == "en" and budget > 55 and rng.random() < 0.04:
        sentences.append(aside(voice, facts))
    message = paragraphs(sentences, facts, style)
    spent += rough_tokens(message)
    while budget - spent > 40 and voice.scenario not in NO_BLOCK:
        block = pasted(voice, facts, min(budget - spent, 600))
        message += "\n\n" + block
        spent += rough_tokens(block)
    if not fields:
        return message
    inline = f"{form['message']}: {message}" if rng.random() < 0.6 else f"{form['message']}:\n{message}"
    tail = rng.choice(("", "", f"\n{'Newsletter' if rng.random() < 0.5 else 'Privacy notice accepted'}: yes"))
    return "\n".join(fields) + f"\n{inline}" + (tail if voice.lang == "en" else "")


def phone_note(voice: Voice, facts: Facts, style: Style, budget: int) -> str:
    """Write an agent's note in telegraphic style."""
    rng, common = facts.rng, voice.common
    who = rng.choice((facts("name"), f"{facts('first')} ({facts('company')})", "Cust", facts("company"), "Caller"))
    lead = rng.choice((f"{who}: ", f"Call {facts.created:%H:%M}, {who} - ", f"{who} called. ", f"INBOUND {who}. ", ""))
    pieces = [lead + facts.pick(voice.own["note"])]
    pools = [common["note_verify"], common["note_status"], common["note_next"], voice.own["note"]]
    rng.shuffle(pools)
    for pool in pools:
        if rough_tokens(" ".join(pieces)) + 6 > budget:
            break
        pieces.append(facts.pick(pool))
    while rough_tokens(" ".join(pieces)) + 12 < budget and len(pieces) < 14:
        kind = rng.choice(("Says: ", "Acc. to cust: ", "Quote: ", "+ ", "Adds: "))
        pool = voice.own["detail"] + voice.by_label["tried"] + voice.by_label["impact"]
        pieces.append(kind + facts.pick(pool))
    text = rng.choice((" ", "\n", " / ", "\n- ")).join(piece if piece[-1] in ".?!" else piece + "." for piece in pieces)
    return style.apply(text, facts)
