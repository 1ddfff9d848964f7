"""The embedded encoder through our packed path, and through sentence-transformers' own `encode`: speed and vectors.

    pip install --no-deps sentence-transformers==6.2.0 && pip install scikit-learn tqdm
    python benchmarks/encoders.py sample_data/tickets.parquet

Both get the same texts, tokenize them, run on the same threads in float32, and take turns in one process; medians of
the rounds are compared. sentence-transformers cuts a text at the model's 256 tokens, so ours is told to read the same
tokens and no more (in the job, longer tickets are read whole, in pieces).
"""

import statistics
import time
from collections.abc import Callable

import click
import numpy as np
import torch

from ticket_etl.config import ScoringConfig
from ticket_etl.encoder_model import EncoderModel
from ticket_etl.labels import load_labels
from ticket_etl.models import find_model
from ticket_etl.models.pooling import read_pooling
from ticket_etl.scorers import score_plan
from ticket_etl.scoring import Scoring
from ticket_etl.workload import read_workload


@click.command()
@click.argument("input", metavar="IN")
@click.option("--model", default="minilm", show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--text-column", "text_columns", multiple=True)
def main(input: str, model: str, rounds: int, text_columns: tuple[str, ...]) -> None:
    """Compare tickets per second, and the vectors of all tickets."""
    from sentence_transformers import SentenceTransformer

    config = ScoringConfig(input=input, model=model, text_columns=text_columns)
    folder = find_model(model)
    texts = read_workload(config).texts
    scoring = Scoring(config, load_labels(None), folder, features=True)
    assert isinstance(scoring.model, EncoderModel)
    peer = SentenceTransformer(str(folder.path), device="cpu", local_files_only=True)
    longest = read_pooling(folder).max_seq_length - len(scoring.prompt.prefix) - len(scoring.prompt.suffix)

    def ours() -> np.ndarray:
        tickets = [ticket.ids[:longest] for ticket in scoring.encoder.encode(texts)]
        vectors = score_plan(scoring.scorer, scoring.strategy, scoring.limits, tickets)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def theirs() -> np.ndarray:
        return np.asarray(peer.encode(texts, show_progress_bar=False))

    seconds: dict[str, list[float]] = {"ours": [], "sentence-transformers": []}
    contestants: dict[str, Callable[[], np.ndarray]] = {"ours": ours, "sentence-transformers": theirs}
    vectors = {name: run() for name, run in contestants.items()}  # warms up, too
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.monotonic()
            run()
            seconds[name].append(time.monotonic() - start)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    click.echo(f"{folder.name}, {len(texts)} distinct tickets of {input}, {torch.get_num_threads()} threads, float32")
    for name, median in medians.items():
        click.echo(f"{name:22} {len(texts) / median:7.1f} tickets/s (median of {rounds})")
    click.echo(f"ratio                  {medians['sentence-transformers'] / medians['ours']:7.2f}")
    difference = np.abs(vectors["ours"] - vectors["sentence-transformers"]).max()
    click.echo(f"largest difference of a vector's component {difference:.1e}")


if __name__ == "__main__":
    main()
