"""One window of texts in, one verdict a row out: deduplicate, encode, plan, score, restore order, decide."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ticket_etl.cache import LabelCache
from ticket_etl.language_model import FloatArray
from ticket_etl.plan import Batch, Limits, restore_order
from ticket_etl.prompt import EncodedTicket, TicketEncoder
from ticket_etl.scorers import MemoryGuard, Reference, Scorer
from ticket_etl.strategies import Strategy
from ticket_etl.tally import Tally
from ticket_etl.verdicts import EMPTY, FAILED, Verdicts, blank_verdicts, decide

_REMEMBERED_TEXTS = 200_000
"""Distinct texts whose verdict is remembered for later windows: some 40 MB, whatever the size of the file."""


@dataclass(frozen=True)
class PreparedWindow:
    """A window, read and encoded.

    keys: the distinct texts' hashes, in order of first appearance.
    rows: int64, shape (rows,): for each row the index of its text in `keys`, or -1 where there is no text.
    cached: verdicts of texts that the label cache knows.
    encoded: per distinct text its token ids; None where the verdict was known before.
    """

    keys: list[bytes]
    rows: npt.NDArray[np.int64]
    cached: dict[bytes, Verdicts]
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
        cache: LabelCache | None = None,
    ) -> None:
        self._encoder = encoder
        self._strategy = strategy
        self._scorer = scorer
        self._reference = MemoryGuard(reference)
        self._guard = MemoryGuard(scorer)
        self._limits = Limits(limits.batch_tickets, limits.batch_tokens, scorer.layout.shared_tokens)
        self._tally = tally
        self._cache = cache
        self._known: dict[bytes, Verdicts] = {}

    def prepare(self, texts: Sequence[str | None], *, encode: bool = True) -> PreparedWindow:
        """Find the distinct texts of a window and, unless its verdicts are there already, encode the new ones."""
        index_of: dict[str, int] = {}
        rows = np.array(
            [-1 if is_blank(text) else index_of.setdefault(text, len(index_of)) for text in texts],  # type: ignore[arg-type]
            dtype=np.int64,
        )
        distinct = list(index_of)
        keys = [text_key(text) for text in distinct]
        unknown = [key for key in keys if key not in self._known] if encode else []
        cached = self._cache.get(unknown) if self._cache is not None else {}
        wanted = set(unknown) - cached.keys()
        new = [index for index, key in enumerate(keys) if key in wanted]
        encoded: list[EncodedTicket | None] = [None] * len(distinct)
        for index, ticket in zip(new, self._encoder.encode([distinct[index] for index in new]), strict=True):
            encoded[index] = ticket
        return PreparedWindow(keys, rows, cached, encoded)

    def label(self, window: PreparedWindow, on_scored: Callable[[int], None]) -> Verdicts:
        """Score a window's new texts and give every row its verdict; `on_scored` is told how many are scored so far."""
        known = self._known | window.cached if window.cached else self._known
        new = [index for index, key in enumerate(window.keys) if key not in known]
        of_text = blank_verdicts(len(window.keys), FAILED)
        of_text[new] = self._score([ticket for index in new if (ticket := window.encoded[index])], on_scored)
        for index in set(range(len(window.keys))).difference(new):
            of_text[index] = known[window.keys[index]]
        self._count_reuse(window, set(new))
        self._keep(window.keys, of_text)
        return _spread(window, of_text)

    def recall(self, window: PreparedWindow, verdicts: Verdicts) -> None:
        """Remember a window that an earlier run has scored, as if it had been scored now."""
        has_text = window.rows >= 0
        of_text = blank_verdicts(len(window.keys), FAILED)
        of_text[window.rows[has_text]] = verdicts[has_text]
        self._keep(window.keys, of_text)

    def _score(self, encoded: Sequence[EncodedTicket], on_scored: Callable[[int], None]) -> Verdicts:
        if not encoded:
            return blank_verdicts(0, FAILED)
        tickets = [ticket.ids for ticket in encoded]
        truncated = np.array([ticket.truncated for ticket in encoded])
        with self._tally.stage("plan"):
            lengths = self._scorer.layout.lengths(tickets)
            batches = self._strategy.planner(lengths, self._limits)
            self._tally.count_plan(batches, lengths)
            self._tally.count_alternatives(tickets, self._encoder.prompt, self._limits)
        with self._tally.stage("score"):
            scores: list[FloatArray] = []
            for batch in batches:
                scores.append(self._guard.score(batch, tickets, lengths))
                on_scored(sum(map(len, scores)))
            log_probs = restore_order(batches, scores)
            for ticket in np.flatnonzero(~np.isfinite(log_probs).all(axis=1)).tolist():
                alone = Batch(((ticket,),), int(lengths[ticket]))
                log_probs[ticket] = self._reference.score(alone, tickets, lengths)[0]
                self._tally.retried += 1
        self._tally.halvings = self._guard.halvings
        return decide(log_probs, truncated)

    def _keep(self, keys: Sequence[bytes], of_text: Verdicts) -> None:
        if self._cache is not None:
            self._cache.put(keys, of_text)
        for key, verdict in zip(keys, of_text, strict=True):
            if len(self._known) >= _REMEMBERED_TEXTS:
                return
            if verdict["status"] != FAILED:
                self._known[key] = verdict

    def _count_reuse(self, window: PreparedWindow, scored: set[int]) -> None:
        repeats = np.bincount(window.rows[window.rows >= 0], minlength=len(window.keys)).tolist()
        fixed = self._encoder.prompt.fixed_tokens - self._limits.shared_tokens
        for index, (key, count) in enumerate(zip(window.keys, repeats, strict=True)):
            if key in window.cached:
                self._tally.cached_rows += count
                continue
            saved = count - (index in scored)
            ticket = window.encoded[index]
            self._tally.duplicates += saved
            self._tally.duplicate_tokens += saved * (fixed + len(ticket.ids)) if ticket is not None else 0


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
