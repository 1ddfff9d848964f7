"""How good labels are, by model and by the number of labelled tickets: the table of the README.

    python benchmarks/quality.py TRAIN TEST --labels labels.toml --gold gold --rows 200 --rows 1044

TRAIN and TEST are files that `classify` reads, with a column of gold labels. For each model: zero-shot labels, and
heads fitted on so many tickets of TRAIN (three seeded draws where that is not all of them), measured on TEST, which no
choice sees. A bag of words (TF-IDF) is fitted on the same tickets. Features are read once and kept, so a second run is
quick, and its speed says nothing.
"""

import time
from pathlib import Path

import click

from ticket_etl.arrays import TokenIds
from ticket_etl.process import prepare_memory

prepare_memory()  # as the command does, before torch is loaded

import numpy as np  # noqa: E402

from ticket_etl import fit  # noqa: E402
from ticket_etl.config import ScoringConfig  # noqa: E402
from ticket_etl.features import FeatureReader  # noqa: E402
from ticket_etl.learning import Examples, figures, make_folds  # noqa: E402
from ticket_etl.preflight import read_request  # noqa: E402

DRAWS = 3
TIMED = 200


@click.command()
@click.argument("train", metavar="TRAIN")
@click.argument("test", metavar="TEST")
@click.option("--labels", type=click.Path(path_type=Path), required=True)
@click.option("--gold", required=True)
@click.option("--rows", multiple=True, type=int, required=True, help="Tickets to fit on; may be repeated.")
@click.option("--even", is_flag=True, help="Draw equally many tickets of each label.")
@click.option("--model", "models", multiple=True, default=("smollm2", "minilm"), show_default=True)
@click.option("--text-column", "text_columns", multiple=True)
def main(
    train: str,
    test: str,
    labels: Path,
    gold: str,
    rows: tuple[int, ...],
    even: bool,
    models: tuple[str, ...],
    text_columns: tuple[str, ...],
) -> None:
    """Print the table."""
    click.echo(f"| what | zero-shot | {' | '.join(f'{count:,} labelled' for count in rows)} | tickets/s |")
    click.echo("|---|---|" + "---|" * len(rows) + "---:|")
    for model in models:
        configs = [
            ScoringConfig(input=path, labels=labels, model=model, text_columns=text_columns) for path in (train, test)
        ]
        request = read_request(configs[0])
        names = request.labels.names
        reader = FeatureReader(configs[0], request.labels, request.folder)
        learn, judge = (fit.read_labelled(config, gold, names) for config in configs)
        learn, tickets, _, hints = fit.read_examples(reader, learn, request.labels, lambda *_: None)
        judge, judged, zero_shot, _ = fit.read_examples(reader, judge, request.labels, lambda *_: None)
        draws = {count: _draws(learn.gold, count, even) for count in rows}
        if model == models[0]:
            cells = [_mean([_bag_of_words(learn, judge, drawn) for drawn in draws[count]]) for count in rows]
            click.echo(f"| TF-IDF, logistic regression | | {' | '.join(cells)} | |")
        ids = reader.encode(judge.texts)
        cells = [
            _mean([_head(reader, tickets.at(drawn), hints, judged, ids) for drawn in draws[count]]) for count in rows
        ]
        click.echo(
            f"| {model} | {_mean([figures(judge.gold, zero_shot.argmax(axis=1))])} | {' | '.join(cells)}"
            f" | {_speed(reader, judge.texts):.1f} |"
        )


def _speed(reader: FeatureReader, texts: list[str]) -> float:
    """Tickets a second of the pass that both zero-shot labels and heads come from, whatever features are kept."""
    drawn = np.random.default_rng(0).permutation(len(texts))[:TIMED]
    started = time.monotonic()
    reader.read([texts[at] for at in drawn.tolist()])
    return len(drawn) / (time.monotonic() - started)


def _draws(gold: np.ndarray, count: int, even: bool) -> list[np.ndarray]:
    """Seeded draws of so many tickets; all of them once, if there are no more."""
    if count >= len(gold):
        return [np.arange(len(gold))]
    randoms = [np.random.default_rng(seed) for seed in range(DRAWS)]
    if not even:
        return [random.permutation(len(gold))[:count] for random in randoms]
    each = -(-count // len(np.unique(gold)))
    of_label = [np.flatnonzero(gold == label) for label in np.unique(gold)]
    return [np.concatenate([random.permutation(places)[:each] for places in of_label]) for random in randoms]


def _head(
    reader: FeatureReader, tickets: Examples, hints: Examples, judged: Examples, ids: list[TokenIds]
) -> tuple[float, float]:
    learned = fit.learn_head(reader, tickets, hints, make_folds(tickets.gold, seed=0))
    head = fit.make_head(learned, reader.labels, reader)
    log_probs = head.log_probs(np.hstack([judged.features[part] for part in head.parts]), ids)
    return figures(judged.gold, log_probs.argmax(axis=1))


def _bag_of_words(learn: fit.LabelledTexts, judge: fit.LabelledTexts, drawn: np.ndarray) -> tuple[float, float]:
    texts = [learn.texts[at] for at in drawn.tolist()] + judge.texts
    gold = np.concatenate([learn.gold[drawn], judge.gold])
    fitted, measured = np.arange(len(drawn)), np.arange(len(drawn), len(texts))
    return figures(judge.gold, fit.tfidf_labels(texts, gold, [(fitted, measured)]))


def _mean(figures: list[tuple[float, float]]) -> str:
    accuracy, macro = np.mean(figures, axis=0)
    return f"{accuracy:.3f} / {macro:.3f}"


if __name__ == "__main__":
    main()
