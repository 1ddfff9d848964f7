"""Words: which tokens are one, whatever the tokenizer."""

import numpy as np
import pytest

from tests.tiny import tiny_encoder_tokenizer, tiny_tokenizer
from ticket_etl.labels import Label, LabelSet
from ticket_etl.prompt import TicketEncoder, build_encoder_prompt, build_prompt
from ticket_etl.words import Words

LABELS = LabelSet((Label("billing"), Label("bug")), system="Sort.", instruction="Choose.")


@pytest.mark.parametrize("kind", ["causal", "encoder"])
def test_every_token_is_a_word_and_case_and_spaces_are_none(kind: str) -> None:
    tokenizer = tiny_tokenizer() if kind == "causal" else tiny_encoder_tokenizer()
    prompt = build_prompt(tokenizer, LABELS) if kind == "causal" else build_encoder_prompt(tokenizer, LABELS, 24)
    encoder = TicketEncoder(tokenizer, prompt, max_ticket_tokens=200)
    table = encoder.word_table()
    assert table.shape == (max(tokenizer.get_vocab().values()) + 1,)
    upper, lower, spaced = (set(table[ticket.ids].tolist()) for ticket in encoder.encode(["A", "a", " a"]))
    assert lower == upper
    assert lower <= spaced
    a, b = (table[ticket.ids].tolist() for ticket in encoder.encode(["a", "b"]))
    assert a != b


def test_parts_of_characters_are_told_apart() -> None:
    """Tokens of single bytes have no text of their own, and are not all one word for that."""
    tokenizer = tiny_tokenizer()
    encoder = TicketEncoder(tokenizer, build_prompt(tokenizer, LABELS), max_ticket_tokens=200)
    table = encoder.word_table()
    first, second = (table[ticket.ids].tolist() for ticket in encoder.encode(["\u7530", "\u8cc7"]))
    assert len(first) > 1
    assert set(first) != set(second)


def test_counts_are_damped_and_length_is_none() -> None:
    words = Words(np.array([0, 1], dtype=np.int32), np.array([2.0, 1.0], dtype=np.float32), np.eye(2, dtype=np.float32))
    once, thrice = (np.array(ids, dtype=np.int32) for ids in ([0, 1], [0, 1] * 3))
    assert words.logits([once])[0] == pytest.approx([2 / 5**0.5, 1 / 5**0.5])
    assert words.logits([thrice]) == pytest.approx(words.logits([once])), "a ticket said three times says the same"
    more = 1 + np.log(3)
    assert words.logits([np.array([0, 0, 0, 1], dtype=np.int32)])[0] == pytest.approx(
        np.array([2 * more, 1]) / np.hypot(2 * more, 1)
    )
