"""From texts to token ids: the prompt around a ticket, the labels, and the tickets themselves.

A prompt is three runs of token ids, joined as ids and never as strings, so that no token can merge across a border:

    prefix   template, instruction, labels, examples    the same for every ticket, shared
    ticket   the text, encoded alone                    special-token parsing off: `<|im_start|>` stays text
    suffix   a short cue, the turn's end, the answer's start

Chat models get their own template; models without one get plain text. Whatever a user can write (ticket, label names,
descriptions, instruction) is encoded with special-token parsing off; only the template itself may make special tokens.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ticket_etl.arrays import Lengths, TokenIds
from ticket_etl.errors import ModelError, UsageError
from ticket_etl.labels import LabelSet
from ticket_etl.trie import LabelTrie, build_trie
from ticket_etl.words import word_table

# Stand-ins for contents while a chat template is rendered: plain letters, which no template strips or rewrites.
_SYSTEM, _USER, _ANSWER = "ticketEtlSystemSlot", "ticketEtlUserSlot", "ticketEtlAnswerSlot"

_CUT_MARK = "\n[...]\n"
_CUT_CHARS_PER_TOKEN = 16
"""Characters read per token kept at either end of an over-long text, so that tokenizing it takes bounded time."""


@dataclass(frozen=True)
class EncodedTicket:
    """Token ids of one ticket's text: int32, shape (tokens,); `truncated` if its middle was cut out."""

    ids: TokenIds
    truncated: bool = False


@dataclass(frozen=True)
class Prompt:
    """Everything around the ticket, as token ids, and the labels that may follow.

    prefix, suffix: int32, shape (tokens,).
    trie: of the labels' token sequences, each ended by the end-of-turn token.
    sequences: per label its token ids, the end-of-turn token included.
    piece_tokens: tickets with more tokens are read in pieces, each with prefix and suffix of its own; None for never.
    """

    prefix: TokenIds
    suffix: TokenIds
    trie: LabelTrie
    sequences: tuple[tuple[int, ...], ...]
    piece_tokens: int | None = None

    @property
    def fixed_tokens(self) -> int:
        """Tokens of every prompt besides the ticket's own, label nodes included."""
        return len(self.prefix) + len(self.suffix) + len(self.trie.nodes)

    @property
    def is_causal(self) -> bool:
        """Whether labels are decoded after it; encoders read in pieces, and have no prefix to share."""
        return self.piece_tokens is None

    def pieces(self, lengths: Lengths) -> Lengths:
        """How many pieces tickets of these lengths are read in: int64, the same shape."""
        return np.maximum(1, -(-lengths // self.piece_tokens)) if self.piece_tokens else np.ones_like(lengths)

    def split(self, ticket: TokenIds) -> list[TokenIds]:
        """The pieces of a ticket, as equal in length as can be."""
        (count,) = self.pieces(np.array([len(ticket)])).tolist()
        return np.array_split(ticket, count)

    def without_branches(self) -> "Prompt":
        """The same prompt with nothing to decode after it, for those who read features and no labels."""
        return replace(self, trie=_NO_LABELS)

    @property
    def fingerprint(self) -> str:
        """A hash of the token ids that every ticket shares."""
        ids = b"|".join(part.tobytes() for part in (self.prefix, self.suffix))
        return hashlib.sha256(ids + str(self.piece_tokens or "").encode()).hexdigest()


_NO_LABELS = build_trie([(0,), (1,)])
"""A trie that is read at its root alone and adds no nodes, for prompts after which nothing is decoded."""


@dataclass(frozen=True)
class _Frame:
    """What the model's template puts around the contents, split where they go."""

    before_system: str
    before_user: str
    before_answer: str
    label_lead: str
    end_of_turn: int
    has_system: bool = True


class TicketEncoder:
    """Encodes tickets for one prompt.

    Args:
        tokenizer: a fast tokenizer; it is used, never changed.
        prompt: what stands around each ticket.
        max_ticket_tokens: longer tickets keep their head and tail, with a mark between.
        context_tokens: the model's longest input, or None if it has no limit or tickets are read in pieces.
        lower_case: whether the model wants its texts in lower case.

    Raises:
        UsageError: the prompt leaves no room for a ticket.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: Prompt,
        *,
        max_ticket_tokens: int,
        context_tokens: int | None = None,
        lower_case: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._lower_case = lower_case
        self.prompt = prompt
        self._mark = self._encode([_CUT_MARK])[0]
        room = max_ticket_tokens
        if context_tokens is not None:
            room = min(room, context_tokens - self.prompt.fixed_tokens)
        if room < len(self._mark) + 2:
            raise UsageError(
                f"the prompt takes {self.prompt.fixed_tokens} of the model's {context_tokens} tokens and leaves no room"
                " for a ticket; shorten the label descriptions or use a model with a longer context"
                if context_tokens is not None and room < max_ticket_tokens
                else f"--max-ticket-tokens must be at least {len(self._mark) + 2}"
            )
        self.max_ticket_tokens = room

    def encode(self, texts: Sequence[str]) -> list[EncodedTicket]:
        """Token ids of each text, over-long ones cut in the middle."""
        reach = self.max_ticket_tokens * _CUT_CHARS_PER_TOKEN
        tickets: list[EncodedTicket | None] = [None] * len(texts)
        short = [index for index, text in enumerate(texts) if len(text) <= 2 * reach]
        for index, ids in zip(short, self._encode([texts[index] for index in short]), strict=True):
            over = len(ids) > self.max_ticket_tokens
            tickets[index] = EncodedTicket(self._cut(ids, ids) if over else ids, over)
        for index, ticket in enumerate(tickets):
            if ticket is None:
                tickets[index] = self._encode_ends(texts[index], reach)
        return [ticket for ticket in tickets if ticket is not None]

    def word_table(self) -> TokenIds:
        """The word that each token id stands for: int32, shape (vocabulary,); see `words.word_table`."""
        ids = range(max(self._tokenizer.get_vocab().values()) + 1)
        names = self._tokenizer.convert_ids_to_tokens(list(ids))
        texts = self._tokenizer.batch_decode([[token] for token in ids])
        # A token that is part of a character has no text of its own; there its name tells it from others.
        return word_table([name or "" if "\ufffd" in text else text for name, text in zip(names, texts, strict=True)])

    def _encode_ends(self, text: str, reach: int) -> EncodedTicket:
        """Encode a very long text from its two ends; the whole of it only if they turn out to hold few tokens."""
        head, tail = self._encode([text[:reach], text[-reach:]])
        if min(len(head), len(tail)) < self.max_ticket_tokens:
            (head,) = (tail,) = self._encode([text])
        over = len(head) > self.max_ticket_tokens or head is not tail
        return EncodedTicket(self._cut(head, tail) if over else head, over)

    def _cut(self, head: TokenIds, tail: TokenIds) -> TokenIds:
        kept = self.max_ticket_tokens - len(self._mark)
        return np.concatenate([head[: kept - kept // 2], self._mark, tail[len(tail) - kept // 2 :]])

    def _encode(self, texts: Sequence[str]) -> list[TokenIds]:
        return encode_plain(self._tokenizer, [text.lower() for text in texts] if self._lower_case else texts)


def encode_plain(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[TokenIds]:
    """Encode texts that users wrote: no special tokens are added and none is recognised in them."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return [np.asarray(ids, dtype=np.int32) for ids in encoded["input_ids"]]


def build_prompt(tokenizer: PreTrainedTokenizerBase, label_set: LabelSet) -> Prompt:
    """Lay out the prompt for a label set in the model's own words.

    Raises:
        UsageError: two labels encode to the same tokens.
        ModelError: the tokenizer has no way to end a turn.
    """
    frame = _chat_frame(tokenizer) if tokenizer.chat_template else _plain_frame(tokenizer)
    system, user = label_set.system, _instructions(label_set)
    if not frame.has_system:
        system, user = "", f"{system}\n\n{user}".lstrip()
    prefix = np.concatenate(
        [
            _encode_template(tokenizer, frame.before_system),
            *encode_plain(tokenizer, [system]),
            _encode_template(tokenizer, frame.before_user),
            *encode_plain(tokenizer, [user]),
        ]
    )
    if tokenizer.bos_token_id is not None and np.array_equal(prefix[:2], [tokenizer.bos_token_id] * 2):
        prefix = prefix[1:]
    cue = "\n\nLabel:" if tokenizer.chat_template is None else "\n\nWhich label fits best?"
    suffix = np.concatenate([*encode_plain(tokenizer, [cue]), _encode_template(tokenizer, frame.before_answer)])
    names = encode_plain(tokenizer, [frame.label_lead + name for name in label_set.names])
    sequences = tuple((*ids.tolist(), frame.end_of_turn) for ids in names)
    for index, sequence in enumerate(sequences):
        if sequence in sequences[:index]:
            twin = label_set.names[sequences.index(sequence)]
            raise UsageError(
                f"labels {twin!r} and {label_set.names[index]!r} are the same tokens to this model; rename one of them"
            )
    return Prompt(prefix, suffix, build_trie(sequences), sequences)


def build_encoder_prompt(tokenizer: PreTrainedTokenizerBase, label_set: LabelSet, max_seq_length: int) -> Prompt:
    """What a sentence encoder sees around a text: its special tokens, once per piece of at most `max_seq_length`.

    Nothing is decoded, so the label trie is empty but for its root.

    Raises:
        ModelError: the tokenizer puts its special tokens elsewhere than before and behind the text.
    """
    alone, framed = (tokenizer("a", add_special_tokens=add)["input_ids"] for add in (False, True))
    start = next((at for at in range(len(framed)) if framed[at : at + len(alone)] == alone), None)
    if start is None or not alone:
        raise ModelError("the model's tokenizer does not frame a text by special tokens; use another model")
    prefix, suffix = (np.array(part, dtype=np.int32) for part in (framed[:start], framed[start + len(alone) :]))
    names = tuple((*ids.tolist(),) for ids in encode_plain(tokenizer, label_set.names))
    return Prompt(prefix, suffix, _NO_LABELS, names, max_seq_length - len(prefix) - len(suffix))


def _instructions(label_set: LabelSet) -> str:
    """The user turn up to the ticket; it ends in a line break, where no tokenizer merges."""
    lines = [label_set.instruction, "", "Labels:"]
    lines += [
        f"- {label.name}: {label.description}" if label.description else f"- {label.name}" for label in label_set.labels
    ]
    for label in label_set.labels:
        for example in label.examples:
            lines += ["", "Ticket:", example, f"Label: {label.name}"]
    return "\n".join([*lines, "", "Ticket:", ""])


def _chat_frame(tokenizer: PreTrainedTokenizerBase) -> _Frame:
    try:
        frame = _render_frame(tokenizer, [{"role": "system", "content": _SYSTEM}])
    except (TemplateError, ValueError):
        frame = None  # a template without a system role
    if frame is None:
        try:
            frame = _render_frame(tokenizer, [])
        except (TemplateError, ValueError) as error:
            raise ModelError(
                f"the model's chat template fails ({error}); use a model with a usable template"
            ) from error
    if frame is None:
        raise ModelError(
            "the model's chat template does not show the user's text once; use a model with a usable template"
        )
    return frame


def _render_frame(tokenizer: PreTrainedTokenizerBase, system: list[dict[str, str]]) -> _Frame | None:
    """The template's own text around system, user and answer; None if it drops or repeats one of them."""
    turns = [*system, {"role": "user", "content": _USER}]
    asked = _render(tokenizer, turns, add_generation_prompt=True)
    answered = _render(tokenizer, [*turns, {"role": "assistant", "content": _ANSWER}])
    if asked.count(_USER) != 1 or answered.count(_ANSWER) != 1 or asked.count(_SYSTEM) != len(system):
        return None
    head, before_answer = asked.split(_USER)
    before_system, before_user = head.split(_SYSTEM) if system else ("", head)
    lead, tail = answered.split(_ANSWER)
    lead = lead[len(asked) :] if lead.startswith(asked) else ""
    after = _encode_template(tokenizer, tail)
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    ends_turn = int(after[0]) if len(after) and int(after[0]) in special else _end_of_text(tokenizer)
    return _Frame(before_system, before_user, before_answer, "" if lead.strip() else lead, ends_turn, bool(system))


def _render(tokenizer: PreTrainedTokenizerBase, turns: list[dict[str, str]], **options: Any) -> str:
    # Models that can think aloud before they answer are asked not to: the label is read from the first answer token.
    return str(tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=False, **options))


def _plain_frame(tokenizer: PreTrainedTokenizerBase) -> _Frame:
    """Plain text for models without a chat template: the space before a label belongs to the label."""
    starts_with_bos = tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id
    return _Frame(str(tokenizer.bos_token) if starts_with_bos else "", "\n\n", "", " ", _end_of_text(tokenizer))


def _end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the model's tokenizer has no end-of-text token, so a label cannot be ended; use another model"
        )
    return int(tokenizer.eos_token_id)


def _encode_template(tokenizer: PreTrainedTokenizerBase, text: str) -> TokenIds:
    """Encode the template's own text, in which special tokens are meant."""
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"], dtype=np.int32)
