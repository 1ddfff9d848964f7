"""Three layouts that break batching in different ways, through `classify` and `verify`."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command.support import OUTPUT_COLUMNS, assert_done, assert_lossless, run_warm

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


@pytest.fixture(scope="module")
def texts(cases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blank texts, texts that begin with what tokenizers merge, and 500 of mixed length, in one file."""
    path = tmp_path_factory.mktemp("texts") / "in.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(cases / case / "in.parquet") for case in TEXTS]), path)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_do_not_depend_on_the_shared_prefix(
    layout: str, models: Path, texts: Path, setup_folder: Path, tmp_path: Path
) -> None:
    """With the prefix computed once and tickets packed, or anew for each padded row, labels are the same."""
    labelled = []
    for strategy in ("packed+prefix", "token-budget"):
        out = tmp_path / f"{strategy}.parquet"
        assert_done(run_warm("classify", texts, out, *options(models, layout, setup_folder), "--strategy", strategy))
        assert_lossless(texts, out)
        labelled.append(pq.read_table(out, columns=OUTPUT_COLUMNS).to_pylist())
    for row, same in zip(*labelled, strict=True):
        assert row["label_status"] == same["label_status"]
        assert row["label"] == same["label"] or row["label_margin"] < 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strategy", ["packed+prefix", "naive"])
def test_every_ticket_agrees_with_the_reference(
    strategy: str, layout: str, models: Path, texts: Path, setup_folder: Path
) -> None:
    """`verify --all` against each ticket alone finds no disagreement: exit 0."""
    outcome = run_warm("verify", texts, "--all", "--strategy", strategy, *options(models, layout, setup_folder))
    assert outcome.code == 0, outcome.err + outcome.out
    assert outcome.out
    assert "Traceback" not in outcome.err
