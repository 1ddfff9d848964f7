"""fit and classify --head through the real command, for both kinds of model."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("sklearn", reason="the extra `fit` is not installed")

from tests.command.support import (
    assert_done,
    assert_refused,
    clean_environment,
    digest,
    names_in,
    read_report,
    run,
    run_warm,
    write_labels,
)
from tests.tiny import save_tiny_encoder, save_tiny_model

WORDS = {"billing": "invoice charged twice", "bug": "error crash export", "login": "password account locked"}


@pytest.fixture(params=["causal", "encoder"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> list[object]:
    save = save_tiny_model if request.param == "causal" else save_tiny_encoder
    labels = write_labels(tmp_path / "labels.toml", *WORDS)
    return ["--model", save(tmp_path / "model"), "--labels", labels]


@pytest.mark.slow
def test_from_labelled_tickets_to_labels(options: list[object], tmp_path: Path, out: Path) -> None:
    """Four commands: fit, classify, verify, evaluate; the head is in the fingerprint, and another model is refused."""
    names = list(WORDS)
    texts = [f"{WORDS[names[at % 3]]} number {at}" for at in range(30)]
    tickets = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": texts, "gold": [names[at % 3] for at in range(30)]}), tickets)
    head = tmp_path / "head"
    environment = clean_environment(TICKET_ETL_CACHE=str(tmp_path / "cache"))
    fitted = run_warm("fit", tickets, "--gold", "gold", "--head", head, *options, environment=environment)
    assert fitted.code == 0, fitted.err
    assert "held out" in fitted.out
    with_head = [*options, "--head", head]
    cache = ["--cache", tmp_path / "labels.sqlite"]
    assert_done(run_warm("classify", tickets, out, *options, *cache, environment=environment))
    assert_done(run_warm("classify", tickets, out, *with_head, *cache, environment=environment))
    assert read_report(out)["rows"]["cached"] == 0, "the cache holds labels that another reading gave"
    labels = pq.read_table(out)["label"].to_pylist()
    assert set(labels) <= set(names)
    fingerprint = read_report(out)["fingerprint"]["head"]
    verified = run_warm("verify", tickets, "--all", *with_head, environment=environment)
    assert verified.code == 0
    assert "30 of 30 distinct tickets agree" in verified.out
    assert run_warm("evaluate", out, "--gold", "gold", environment=environment).code == 0
    assert_done(run_warm("classify", tickets, out, *with_head, "--strategy", "bucketed", environment=environment))
    assert pq.read_table(out)["label"].to_pylist() == labels
    assert read_report(out)["fingerprint"]["head"] == fingerprint
    write_labels(tmp_path / "labels.toml", *names[::-1])
    first = digest(out)
    refused = run_warm("classify", tickets, out, *with_head, environment=environment)
    assert_refused(refused, 2, "the head was fitted with another", "label list")
    assert digest(out) == first
    assert names_in(out.parent) == {"out.parquet", "out.parquet.report.json"}


def test_head_of_the_nightly_job_is_not_written_by_chance(tickets: Path, quick: list[str], tmp_path: Path) -> None:
    """What `classify` reads by configuration or environment, `fit` writes only where its flag says so."""
    (tmp_path / "live").write_text("last month's head")
    (tmp_path / "ticket-etl.toml").write_text('head = "live"\n', encoding="utf-8")
    environment = clean_environment(TICKET_ETL_HEAD="live")
    fitted = run("fit", tickets, "--gold", "label", *quick, cwd=tmp_path, environment=environment)
    assert_refused(fitted, 2, "--head")
    assert (tmp_path / "live").read_text() == "last month's head"


def test_head_that_is_none_is_refused_at_once(tickets: Path, out: Path, quick: list[str], tmp_path: Path) -> None:
    (tmp_path / "head").write_text("no head")
    assert_refused(run_warm("classify", tickets, out, *quick, "--head", tmp_path / "head"), 2, "is not a head")
    assert names_in(out.parent) == set()
