"""Settings of all tests: one thread for tiny models, and the shared cases and data if they are there."""

import os
from pathlib import Path

import pytest

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
