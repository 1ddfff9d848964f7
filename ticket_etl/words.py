"""The words of a ticket as features, beside what the model makes of them.

A mean of hidden states blurs the one rare word that tells a label; counts of words keep it, and miss what is said in
other words. A head that has both beats either. The words are the model's own tokens, which a ticket is encoded to
anyway, so this costs no time and knows every language that the tokenizer knows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ticket_etl.arrays import FloatArray

Ids = npt.NDArray[np.int32] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """Logits of labels from the words in a ticket: weights times TF-IDF at unit length.

    A word counts (1 + ln of its occurrences) times its idf (G. Salton and C. Buckley, Term-weighting approaches in
    automatic text retrieval, 1988).

    word_of: int32, shape (vocabulary,): the word that each token id stands for, -1 for one that was not learned from.
    idf: float32, shape (words,).
    weight: float32, shape (labels, words).
    """

    word_of: npt.NDArray[np.int32]
    idf: FloatArray
    weight: FloatArray

    def logits(self, tickets: Sequence[Ids]) -> npt.NDArray[np.float64]:
        """Logits, in float64 of shape (tickets, labels), that depend on nothing but each ticket's own token ids."""
        logits = np.zeros((len(tickets), len(self.weight)))
        for row, ticket in zip(logits, tickets, strict=True):
            words, counts = np.unique(self.word_of[ticket], return_counts=True)
            known = words >= 0
            words = words[known]
            values = (1 + np.log(counts[known])) * self.idf[words]
            row += self.weight[:, words].astype(np.float64) @ values / max(float(np.linalg.norm(values)), 1e-12)
        return logits


def word_table(texts: Sequence[str]) -> npt.NDArray[np.int32]:
    """The word that each token stands for, given its text: int32, shape (tokens,).

    Tokens that differ in case or in the space before them are one word.

    >>> word_table(["refund", " Refund", "fund", "REFUND"]).tolist()
    [0, 0, 1, 0]
    """
    words: dict[str, int] = {}
    return np.array([words.setdefault(text.strip().casefold(), len(words)) for text in texts], dtype=np.int32)
