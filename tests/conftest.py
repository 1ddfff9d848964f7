"""Settings of all tests: one thread for tiny models, and the shared cases and data if they are there."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ticket_etl.flex import FlexPacking
    from ticket_etl.network import Network, PrefixCache
    from ticket_etl.trie import LabelTrie

ROOT = Path(__file__).parent.parent

# Before torch is loaded, here and in the processes that tests start: tiny products gain nothing from threads, and tests
# that run side by side lose much to them.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared cases and data, named by TICKET_ETL_SHARED or lying beside the project."""
    folder = Path(os.environ.get("TICKET_ETL_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared cases and data in {folder}; set TICKET_ETL_SHARED to run this test")
    return folder


@pytest.fixture(scope="session", autouse=True)
def bfloat16_products() -> Iterator[None]:
    """Every test has bfloat16 products, real ones or the stand-in."""
    from tests.bfloat16 import stand_in

    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """The command sets logging up for its process; a test that runs it in this one must not do so for all others."""
    root, own = logging.getLogger(), logging.getLogger("ticket_etl")
    before, level = root.handlers[:], own.level
    yield
    own.setLevel(level)
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)


@pytest.fixture
def gpu_packings(monkeypatch: pytest.MonkeyPatch) -> "list[FlexPacking]":
    """Tickets are packed as for a GPU, whatever the device; the packings that were made."""
    from torch.nn.attention import flex_attention

    from ticket_etl import scorers
    from ticket_etl.flex import FlexPacking

    made: list[FlexPacking] = []

    def packing_for(model: "Network", prefix: "PrefixCache | None", labels: "LabelTrie") -> FlexPacking:
        made.append(FlexPacking(prefix, labels))
        return made[-1]

    monkeypatch.setattr(scorers, "packing_for", packing_for)
    monkeypatch.setattr(flex_attention, "_WARNINGS_SHOWN", {"flex_attention_performance"})
    return made
