"""Windows: bounded runs of tickets, so that memory does not depend on the size of the file.

Everything inside a window is decided by its tickets alone, so an interrupted run that scores a window again gets the
same batches and the same bits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def windows(batches: Iterable[Sequence[str | None]], *, tickets: int, characters: int) -> Iterator[list[str | None]]:
    """Regroup texts into windows of at most so many tickets and characters; one text alone may exceed the latter.

    >>> list(windows([["a", None, "b"], ["cccc", "d"]], tickets=2, characters=4))
    [['a', None], ['b'], ['cccc'], ['d']]
    """
    window: list[str | None] = []
    held = 0
    for batch in batches:
        for text in batch:
            size = len(text) if text else 0
            if window and (len(window) >= tickets or held + size > characters):
                yield window
                window, held = [], 0
            window.append(text)
            held += size
    if window:
        yield window


def one_ahead(items: Iterable[T], work: Callable[[T], R]) -> Iterator[R]:
    """Yield `work(item)` for each item, computed on a thread one item ahead of the consumer.

    The iterable is advanced on that thread too. An error of either comes out where its item would.
    """
    iterator = iter(items)
    done = object()

    def step() -> R | object:
        item = next(iterator, done)
        return done if item is done else work(item)  # type: ignore[arg-type]

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare") as thread:
        upcoming = thread.submit(step)
        while (result := upcoming.result()) is not done:
            upcoming = thread.submit(step)
            yield result  # type: ignore[misc]
