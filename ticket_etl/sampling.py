"""Small samples that stand for a whole: seeded, and spread over all lengths."""

from collections.abc import Sequence

import numpy as np


def stratified_sample(lengths: Sequence[int], count: int, seed: int | Sequence[int]) -> list[int]:
    """Indices of `count` tickets, ascending: the longest, and one drawn from each of equal slices of the others.

    Slices are of the ranking by length. The longest ticket is the one that a wrong batch breaks first.

    >>> stratified_sample([5, 1, 9, 3], 2, seed=0)[-1]
    2
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    if count >= len(order):
        return list(range(len(order)))
    random = np.random.default_rng(seed)
    drawn = [int(random.choice(part)) for part in np.array_split(order[:-1], count - 1)] if count > 1 else []
    return sorted([*drawn, int(order[-1])])
