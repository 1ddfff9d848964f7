"""One window of texts in, one verdict a row out: deduplicate, encode, plan, score, restore order, decide."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import FloatArray, Lengths, TokenIds
from ticket_etl.cache import KnownVerdicts, LabelCache
from ticket_etl.certify import Certifier
from ticket_etl.plan import Batch, Limits, restore_order
from ticket_etl.prompt import EncodedTicket, TicketEncoder
from ticket_etl.scorers import MemoryGuard, Reference, Scorer
from ticket_etl.strategies import Strategy
from ticket_etl.tally import Tally
from ticket_etl.verdicts import EMPTY, FAILED, Verdicts, blank_verdicts, decide

_REMEMBERED_TEXTS = 200_000
"""Distinct texts whose verdict is remembered for later windows: some 30 MB, whatever the size of the file."""


@dataclass(frozen=True)
class PreparedWindow:
    """A window, read and encoded.

    keys: the distinct texts' hashes, in order of first appearance.
    rows: int64, shape (rows,): for each row the index of its text in `keys`, or -1 where there is no text.
    cached: what the label cache knows of the texts.
    encoded: per distinct text its token ids; None where the verdict was known before.
    """

    keys: list[bytes]
    rows: npt.NDArray[np.int64]
    cached: KnownVerdicts
    encoded: list[EncodedTicket | None]


class Labeller:
    """Labels windows with one scorer, and remembers texts it has seen.

    `prepare` may run on another thread, one window ahead of `label`. What is remembered never decides how a ticket is
    prepared, only whether it is scored again, so the outcome does not depend on the threads' timing.
    """

    def __init__(
        self,
        encoder: TicketEncoder,
        strategy: Strategy,
        scorer: Scorer,
        reference: Reference,
        limits: Limits,
        tally: Tally,
        *,
        certifier: Certifier | None = None,
        cache: LabelCache | None = None,
    ) -> None:
        self._encoder = encoder
        self._strategy = strategy
        self._scorer = scorer
        self._reference = MemoryGuard(reference)
        self._reference_layout = reference.layout
        self._guard = MemoryGuard(scorer)
        self._limits = Limits(limits.batch_tickets, limits.batch_tokens, scorer.layout.shared_tokens)
        self._tally = tally
        self._certifier = certifier
        self._cache = cache
        self._memory = _Memory()

    def prepare(self, texts: Sequence[str | None], *, encode: bool = True) -> PreparedWindow:
        """Find the distinct texts of a window and, unless its verdicts are there already, encode the new ones."""
        index_of: dict[str, int] = {}
        rows = np.array(
            [-1 if is_blank(text) else index_of.setdefault(text, len(index_of)) for text in texts],  # type: ignore[arg-type]
            dtype=np.int64,
        )
        distinct = list(index_of)
        keys = [text_key(text) for text in distinct]
        unknown = [key for key in keys if key not in self._memory.index] if encode else []
        cached = self._cache.get(unknown) if self._cache is not None else KnownVerdicts()
        wanted = set(unknown).difference(cached.index)
        new = [index for index, key in enumerate(keys) if key in wanted]
        encoded: list[EncodedTicket | None] = [None] * len(distinct)
        for index, ticket in zip(new, self._encoder.encode([distinct[index] for index in new]), strict=True):
            encoded[index] = ticket
        return PreparedWindow(keys, rows, cached, encoded)

    def label(self, window: PreparedWindow, on_scored: Callable[[int], None]) -> Verdicts:
        """Score a window's new texts and give every row its verdict; `on_scored` is told how many are scored so far."""
        keys, encoded = window.keys, window.encoded
        in_memory = np.array([self._memory.index.get(key, -1) for key in keys], dtype=np.int64)
        in_cache = np.array([window.cached.index.get(key, -1) for key in keys], dtype=np.int64)
        in_cache[in_memory >= 0] = -1
        new = np.flatnonzero((in_memory < 0) & (in_cache < 0))
        of_text = blank_verdicts(len(keys), FAILED)
        of_text[in_memory >= 0] = self._memory.verdicts[in_memory[in_memory >= 0]]
        of_text[in_cache >= 0] = window.cached.verdicts[in_cache[in_cache >= 0]]
        of_text[new] = self._score([ticket for index in new.tolist() if (ticket := encoded[index])], on_scored)
        tokens = np.array([0 if ticket is None else len(ticket.ids) for ticket in encoded], dtype=np.int64)
        tokens[in_memory >= 0] = self._memory.tokens[in_memory[in_memory >= 0]]
        self._count_reuse(window, new, in_cache >= 0, tokens)
        if self._cache is not None:
            self._cache.put([keys[index] for index in new.tolist()], of_text[new])
            self._cache.touch(window.cached)
        self._memory.add(keys, of_text, tokens)
        return _spread(window, of_text)

    def recall(self, window: PreparedWindow, verdicts: Verdicts) -> None:
        """Remember a window that an earlier run has scored, as if it had been scored now."""
        has_text = window.rows >= 0
        of_text = blank_verdicts(len(window.keys), FAILED)
        of_text[window.rows[has_text]] = verdicts[has_text]
        if self._cache is not None:
            self._cache.put(window.keys, of_text)
        self._memory.add(window.keys, of_text, np.zeros(len(window.keys), dtype=np.int64))

    def _score(self, encoded: Sequence[EncodedTicket], on_scored: Callable[[int], None]) -> Verdicts:
        if not encoded:
            return blank_verdicts(0, FAILED)
        tickets = [ticket.ids for ticket in encoded]
        truncated = np.array([ticket.truncated for ticket in encoded])
        with self._tally.stage("plan"):
            lengths = self._scorer.layout.lengths(tickets)
            batches = self._strategy.planner(lengths, self._limits)
            self._tally.count_plan(batches, lengths)
            self._tally.count_alternatives(tickets, self._scorer.layout.prompt, self._limits)
        log_probs = self._log_probs(batches, tickets, lengths, on_scored)
        with self._tally.stage("score"):
            full = self._reference_layout.lengths(tickets)
            for ticket in np.flatnonzero(~np.isfinite(log_probs).all(axis=1)).tolist():
                alone = Batch(((ticket,),), int(full[ticket]))
                log_probs[ticket] = self._reference.score(alone, tickets, full)[0]
                self._tally.retried += 1
        self._tally.halvings = self._guard.halvings
        return decide(log_probs, truncated)

    def _log_probs(
        self, batches: Sequence[Batch], tickets: Sequence[TokenIds], lengths: Lengths, on_scored: Callable[[int], None]
    ) -> FloatArray:
        """Log-probabilities by the scorer, certified where precision is low: float32, shape (tickets, labels)."""
        with self._tally.stage("score"):
            if self._certifier is not None and self._certifier.is_small(len(tickets)):
                exact = self._certifier.score_exactly(tickets)
                on_scored(len(tickets))
                return exact
            scores: list[FloatArray] = []
            for batch in batches:
                scores.append(self._guard.score(batch, tickets, lengths))
                on_scored(sum(map(len, scores)))
            log_probs = restore_order(batches, scores)
        if self._certifier is None:
            return log_probs
        with self._tally.stage("certify"):
            return self._certifier.certify(log_probs, tickets)

    def _count_reuse(
        self,
        window: PreparedWindow,
        new: npt.NDArray[np.int64],
        from_cache: npt.NDArray[np.bool_],
        tokens: npt.NDArray[np.int64],
    ) -> None:
        repeats = np.bincount(window.rows[window.rows >= 0], minlength=len(window.keys))
        fixed = self._scorer.layout.prompt.fixed_tokens - self._limits.shared_tokens
        self._tally.cached_rows += int(repeats[from_cache].sum())
        repeats[new] -= 1
        self._tally.duplicates += int(repeats[~from_cache].sum())
        self._tally.duplicate_tokens += int((repeats * (tokens + fixed))[~from_cache].sum())


class _Memory:
    """Verdicts of texts seen before, up to a fixed number; what came first stays."""

    def __init__(self) -> None:
        self.index: dict[bytes, int] = {}
        self.verdicts = blank_verdicts(_REMEMBERED_TEXTS, FAILED)
        self.tokens = np.zeros(_REMEMBERED_TEXTS, dtype=np.int64)

    def add(self, keys: Sequence[bytes], verdicts: Verdicts, tokens: npt.NDArray[np.int64]) -> None:
        """Remember all but failed verdicts, of texts whose token counts are `tokens`."""
        room = _REMEMBERED_TEXTS - len(self.index)
        good = (verdicts["status"] != FAILED).tolist()
        fresh = [at for at, key in enumerate(keys) if good[at] and key not in self.index][:room]
        start = len(self.index)
        self.verdicts[start : start + len(fresh)] = verdicts[fresh]
        self.tokens[start : start + len(fresh)] = tokens[fresh]
        self.index.update((keys[at], start + place) for place, at in enumerate(fresh))


def _spread(window: PreparedWindow, of_text: Verdicts) -> Verdicts:
    """Each row gets the verdict of its text, and rows without text are empty."""
    verdicts = blank_verdicts(len(window.rows), EMPTY)
    has_text = window.rows >= 0
    verdicts[has_text] = of_text[window.rows[has_text]]
    return verdicts


def is_blank(text: str | None) -> bool:
    """Whether there is nothing to label: no text, or white space alone."""
    return text is None or not text.strip()


def text_key(text: str) -> bytes:
    """A hash that stands for a text: 16 bytes of BLAKE2b over its UTF-8."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
