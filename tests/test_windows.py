"""Windows are bounded and keep the order; work one item ahead overlaps, and its errors come out."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_etl.windows import one_ahead, windows

PATIENCE = 10.0
"""Seconds to wait for what must happen; only a failing test waits so long."""

texts = st.lists(st.one_of(st.none(), st.text("ab", max_size=9)), max_size=12)


def size(window: list[str | None]) -> int:
    return sum(len(text) for text in window if text)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, max_size=6), st.integers(1, 5), st.integers(1, 12))
def test_windows_keep_every_text_in_order(batches: list[list[str | None]], tickets: int, characters: int) -> None:
    """However the reader cuts the file, no window is empty, too long, or too heavy but for one text alone."""
    cut = list(windows(batches, tickets=tickets, characters=characters))
    assert [text for window in cut for text in window] == [text for batch in batches for text in batch]
    assert all(1 <= len(window) <= tickets for window in cut)
    assert all(size(window) <= characters or sum(bool(text) for text in window) == 1 for window in cut)


@settings(max_examples=60, deadline=None)
@given(st.lists(texts, max_size=6), st.integers(1, 5), st.integers(1, 12))
def test_windows_do_not_depend_on_the_readers_batches(batches: list, tickets: int, characters: int) -> None:
    together = [text for batch in batches for text in batch]
    cut = list(windows(batches, tickets=tickets, characters=characters))
    assert cut == list(windows([together], tickets=tickets, characters=characters))
    for window, following in pairwise(cut):
        assert len(window) == tickets or size([*window, following[0]]) > characters


def test_windows_are_made_as_they_are_asked_for() -> None:
    """A window comes out once it is known to be full, without reading the rest of the file."""

    def endless() -> Iterator[list[str]]:
        while True:
            yield ["a", "b", "c"]

    cut = windows(endless(), tickets=2, characters=100)
    assert [next(cut), next(cut)] == [["a", "b"], ["c", "a"]]


def test_long_text_stands_alone() -> None:
    cut = windows([["a", "b" * 50, "c"]], tickets=10, characters=8)
    assert list(cut) == [["a"], ["b" * 50], ["c"]]


def prepare_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prepare")]


def test_results_come_in_order() -> None:
    assert list(one_ahead(range(50), lambda item: item * item)) == [item * item for item in range(50)]
    assert list(one_ahead([], str)) == []


@pytest.mark.parametrize("value", [None, False, 0, (), []])
def test_results_may_be_anything(value: object) -> None:
    """Nothing but the end of the items ends the results."""
    assert list(one_ahead(range(3), lambda item: value)) == [value] * 3


def test_work_overlaps_with_the_consumer_one_item_ahead() -> None:
    """While the consumer holds item 0, item 1 is worked on, on another thread; item 2 is not even read."""
    read: list[int] = []
    worked = [threading.Event() for _ in range(4)]
    threads: set[int] = set()

    def source() -> Iterator[int]:
        for item in range(4):
            read.append(item)
            yield item

    def work(item: int) -> int:
        threads.add(threading.get_ident())
        worked[item].set()
        return item

    results = one_ahead(source(), work)
    for item in range(3):
        assert next(results) == item
        assert worked[item + 1].wait(PATIENCE)
        assert read == list(range(item + 2))
    assert list(results) == [3]
    assert threading.get_ident() not in threads


def test_error_of_the_work_comes_out_where_its_item_would() -> None:
    def work(item: int) -> int:
        return 6 // (3 - item)

    results = one_ahead(range(9), work)
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert prepare_threads() == []


def test_error_of_the_source_comes_out_where_its_item_would() -> None:
    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("the disk is gone")

    results = one_ahead(source(), str)
    assert [next(results), next(results)] == ["1", "2"]
    with pytest.raises(OSError, match="the disk is gone"):
        next(results)
    assert prepare_threads() == []


def test_thread_ends_with_the_items() -> None:
    assert list(one_ahead(range(3), str)) == ["0", "1", "2"]
    assert prepare_threads() == []


def test_thread_ends_with_the_consumer() -> None:
    """A consumer that stops early leaves no thread behind and no more than one item read ahead."""
    read: list[int] = []
    results = one_ahead((read.append(item) or item for item in range(100)), str)
    assert next(results) == "0"
    assert prepare_threads() != []
    results.close()
    assert prepare_threads() == []
    assert len(read) <= 2
