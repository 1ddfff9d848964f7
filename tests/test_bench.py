"""The comparison of strategies and dtypes: who takes part, what is certified, and the drawing."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tiny import save_tiny_model
from ticket_etl import bench_plot, kernels
from ticket_etl.bench import BenchTable, bench_input
from ticket_etl.bench_plot import check_plot, draw
from ticket_etl.cli import run_command
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import OutputError, UsageError
from ticket_etl.kernels import FLOAT32

NAMES = ("per-item", "packed+prefix", "naive")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def tickets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tickets") / "in.parquet"
    texts = [f"{number} I was billed {'twice ' * (number % 7)}" for number in range(40)]
    pq.write_table(pa.table({"text": texts}), path)
    return path


def bench_of(model: Path, tickets: Path, *dtypes: str) -> BenchTable:
    config = ScoringConfig(input=str(tickets), model=str(model), max_ticket_tokens=64)
    return bench_input(config, 24, 2, NAMES, dtypes, lambda done, total: None)


@pytest.fixture(scope="module")
def table(model: Path, tickets: Path) -> BenchTable:
    return bench_of(model, tickets, "auto")


def test_plain_per_item_is_the_baseline(table: BenchTable) -> None:
    """The model's own layers, once, before everything else; it is the reference, so nothing drifts."""
    first, *others = table.rows
    assert (first.strategy, first.layers, first.dtype) == ("per-item", "plain", FLOAT32)
    assert (first.speedup_vs_per_item, first.max_drift, first.padding_fraction) == (1.0, 0.0, 0.0)
    assert {row.layers for row in others} == {"prepacked"}


def test_auto_is_float32_and_bfloat16(table: BenchTable) -> None:
    """Each strategy in each, labels and drift of bfloat16 being those after certification."""
    assert [(row.strategy, row.dtype, row.certified) for row in table.rows[1:]] == [
        (name, dtype, dtype == "bfloat16") for dtype in ("float32", "bfloat16") for name in NAMES
    ]
    assert table.exit_code == 0
    assert all(row.agreement == 1.0 for row in table.rows)
    assert {*table.matrix_gflops} == {"float32", "bfloat16"}
    drifts = {row.dtype: row.max_drift for row in table.rows if row.strategy == "packed+prefix"}
    assert drifts["float32"] < 1e-4 < drifts["bfloat16"]


def test_auto_without_bfloat16_is_float32(model: Path, tickets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = kernels._all_pass
    monkeypatch.setattr(kernels, "_all_pass", lambda layers, name: name == FLOAT32 and honest(layers, name))
    assert {row.dtype for row in bench_of(model, tickets, "auto").rows} == {"float32"}


def test_bfloat16_alone_still_has_the_float32_baseline(model: Path, tickets: Path) -> None:
    rows = bench_of(model, tickets, "bfloat16").rows
    assert [row.dtype for row in rows] == ["float32", *["bfloat16"] * len(NAMES)]


def test_head_line_says_what_was_timed(table: BenchTable) -> None:
    text = str(table)
    assert "24 of 40 distinct tickets, a seeded sample stratified by length" in text.splitlines()[0]
    assert "| packed+prefix | bfloat16, certified |" in text
    assert "| per-item | float32, plain |" in text
    assert json.loads(table.to_json())["rows"][0]["layers"] == "plain"


@pytest.mark.parametrize("suffix", bench_plot.FORMATS)
def test_plot_is_drawn(suffix: str, table: BenchTable, tmp_path: Path) -> None:
    path = tmp_path / f"bench{suffix}"
    draw(table, path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_plot_that_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is timed, in one line."""
    with pytest.raises(UsageError, match="must end in"):
        check_plot(tmp_path / "bench.xyz")
    with pytest.raises(OutputError, match="does not exist"):
        check_plot(tmp_path / "nowhere" / "bench.svg")
    monkeypatch.setattr(bench_plot, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'ticket-etl\[report\]'"):
        check_plot(tmp_path / "bench.svg")


def test_dtype_may_be_repeated(
    model: Path, tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line as in the environment and the configuration, where other commands take one."""
    monkeypatch.chdir(tmp_path)
    command = ["bench", str(tickets), "--model", str(model), "--sample", "4", "--repeats", "1", "--only", "packed"]
    plot = ["--json", "bench.json", "--plot", "bench.svg"]

    def dtypes() -> list[str]:
        assert run_command([*command, *plot]) == 0, capsys.readouterr().err
        return [row["dtype"] for row in json.loads(Path("bench.json").read_bytes())["rows"][1:]]

    command += ["--dtype", "float32", "--dtype", "bfloat16"]
    assert dtypes() == ["float32", "bfloat16"]
    assert Path("bench.svg").is_file()
    del command[-4:]
    Path("ticket-etl.toml").write_text('dtype = "float32"\n')
    assert dtypes() == ["float32"]
    monkeypatch.setenv("TICKET_ETL_DTYPE", "bfloat16 float32")
    assert dtypes() == ["float32", "bfloat16"]
