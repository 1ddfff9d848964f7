"""Chat transcripts: turns of a customer and an agent, with or without time stamps."""

from __future__ import annotations

from datetime import timedelta

from ticketgen.compose import Style, pasted, pastes_early
from ticketgen.facts import Facts
from ticketgen.grammar import load, rough_tokens
from ticketgen.voice import Voice

STYLES = (
    "[{clock}] {who}: {text}",
    "{who} ({clock}): {text}",
    "{clock} <{who}> {text}",
    "{who}: {text}",
    "{who}: {text}",
)


def chat(voice: Voice, facts: Facts, style: Style, budget: int) -> str:
    """Write a chat: one message if short, else a conversation that ends when the budget is used up."""
    if budget < 34 or (budget < 60 and facts.rng.random() < 0.5):
        return _message(voice, facts, style, budget)
    return _transcript(voice, facts, style, budget)


def _message(voice: Voice, facts: Facts, style: Style, budget: int) -> str:
    sentences = voice.sentences(facts, budget)
    if facts.rng.random() < 0.4:
        sentences.insert(0, facts.pick(voice.common.get("chat_hello_user") or voice.common["hello_user"]))
    text = style.apply(facts.rng.choice((" ", "\n", " ")).join(sentences), facts)
    if style.emoji:
        text += " " + facts.rng.choice(load("en_common")[facts.rng.choice(("emoji_neg", "emoji_pos"))])
    return text


def _transcript(voice: Voice, facts: Facts, style: Style, budget: int) -> str:
    rng, common = facts.rng, voice.common
    english = voice.lang == "en"
    layout = rng.choice(STYLES)
    customer = rng.choice((facts("first"), "Visitor", "Customer", facts("name")))
    agent = facts("agent") if rng.random() < 0.7 else f"{facts('agent')} (Quillfern)"
    moment = facts.created - timedelta(minutes=rng.randint(4, 25))
    seconds = rng.random() < 0.4
    lines: list[str] = []
    spent = 0

    def turn(who: str, text: str, block: str = "") -> None:
        nonlocal moment, spent
        moment += timedelta(seconds=rng.randint(5, 95))
        text = style.apply(text, facts) if who == customer else text
        text += f"\n{block}" if block else ""
        lines.append(layout.format(clock=moment.strftime("%H:%M:%S" if seconds else "%H:%M"), who=who, text=text))
        spent += rough_tokens(lines[-1]) + 1

    hello_user = common["chat_hello_user"] if english else common["hello_user"]
    hello_agent = common["chat_hello_agent"] if english else common["hello_agent"]
    if rng.random() < 0.6:
        turn(customer, facts.pick(hello_user))
    if budget > 60 or rng.random() < 0.5:
        turn(agent, facts.pick(hello_agent))
    said = voice.sentences(facts, min(170, int(budget * 0.55)))
    for sentence in said[:2] if rng.random() < 0.5 else [" ".join(said[:2])]:
        turn(customer, sentence)
    waiting = said[2:]
    if english and pastes_early(voice, facts, budget - 50):
        turn(customer, facts.pick(common["attached"]), pasted(voice, facts, int(budget * 0.4)))
    pairs = [tuple(pair.split(" => ")) for pair in voice.questions()]
    own = len(voice.by_label.get("qa", ()))
    pairs = rng.sample(pairs[:own], own) + rng.sample(pairs[own:], len(pairs) - own)
    asked: set[str] = set()
    while spent < budget - 8 and (waiting or pairs):
        if pairs and rng.random() < 0.6:
            question, answer = pairs.pop(0)
            if question in asked:
                continue
            asked.add(question)
            ack = facts.pick(common["chat_ack_agent"]) + " " if english and rng.random() < 0.25 else ""
            turn(agent, ack + facts.say(question))
            turn(customer, facts.say(answer))
        elif waiting:
            turn(customer, waiting.pop(0))
            if english and rng.random() < 0.3 and spent < budget - 20:
                turn(agent, facts.pick(common["chat_ack_agent"]))
    if english and budget - spent > 80:
        turn(customer, facts.pick(common["attached"]), pasted(voice, facts, budget - spent - 30))
    if english and rng.random() < 0.6 and budget > 70:
        turn(agent, facts.pick(common["chat_end_agent"]))
        if "inactive" not in lines[-1] and rng.random() < 0.6:
            turn(customer, facts.pick(common["chat_end_user"]))
    return "\n".join(lines)
