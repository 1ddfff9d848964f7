"""Settings of all tests: one thread for tiny models, and the shared cases and data if they are there."""

import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    # Tiny products gain nothing from threads, and lose much to them on a busy machine.
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared cases and data, named by TICKET_ETL_SHARED or lying beside the project."""
    folder = Path(os.environ.get("TICKET_ETL_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"no shared cases and data in {folder}; set TICKET_ETL_SHARED to run this test")
    return folder
