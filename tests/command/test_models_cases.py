"""Three layouts that break batching in different ways, through `classify` and `verify`."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from tests.command.support import OUTPUT_COLUMNS, assert_done, assert_lossless, run

pytestmark = pytest.mark.slow

LAYOUTS = ["rope", "abspos", "sliding"]
TEXTS = ["C2", "C12", "C25"]


@pytest.fixture(scope="module")
def models(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared tiny models: bfloat16 weights; absolute positions and no pad token; a window of eight tokens."""
    path = shared / "cases" / "make_tiny_models.py"
    spec = importlib.util.spec_from_file_location("make_tiny_models", path)
    if not path.is_file() or spec is None or spec.loader is None:
        pytest.skip(f"no {path}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    module.main(folder)
    return folder


def options(models: Path, layout: str, setup_folder: Path) -> list[str]:
    labels = setup_folder / "labels.toml"
    return ["--model", str(models / layout), "--labels", str(labels), "--max-ticket-tokens", "96"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_do_not_depend_on_the_shared_prefix(
    layout: str, models: Path, cases: Path, setup_folder: Path, tmp_path: Path
) -> None:
    """With the prefix computed once or anew, packed or alone, each text of the three inputs gets the same label."""
    for case in TEXTS:
        source = cases / case / "in.parquet"
        labelled = {}
        for strategy in ("packed+prefix", "per-item") if case != "C25" else ("packed+prefix", "token-budget"):
            out = tmp_path / f"{case}-{strategy}.parquet"
            outcome = run("classify", source, out, *options(models, layout, setup_folder), "--strategy", strategy)
            assert_done(outcome)
            assert_lossless(source, out)
            labelled[strategy] = pq.read_table(out, columns=OUTPUT_COLUMNS).to_pylist()
        one, other = labelled.values()
        for row, same in zip(one, other, strict=True):
            assert row["label_status"] == same["label_status"]
            assert row["label"] == same["label"] or row["label_margin"] < 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strategy", ["packed+prefix", "bucketed+prefix", "naive"])
def test_every_ticket_agrees_with_the_reference(
    strategy: str, layout: str, models: Path, cases: Path, setup_folder: Path
) -> None:
    """`verify --all` finds no disagreement: exit 0."""
    case = cases / ("C12" if strategy == "naive" else "C25") / "in.parquet"
    settings = options(models, layout, setup_folder)
    outcome = run("verify", case, "--all", "--strategy", strategy, *settings)
    assert outcome.code == 0, outcome.err + outcome.out
    assert outcome.out
    assert "Traceback" not in outcome.err
