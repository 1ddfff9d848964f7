"""What the model is told of the labels, and what that is worth: zero-shot accuracy, macro-F1 and speed on gold labels.

    python benchmarks/prompts.py tickets.parquet --gold gold --labels labels.toml --tickets 300

    names          the labels' names alone
    descriptions   names with descriptions
    letters        the model answers A, B, C, ...; names and descriptions stand behind the letters
    examples       names, descriptions, and one short ticket of each label, which is then not measured on

Each is measured as it is, with contextual calibration (what `--calibrate` does; Zhao et al. 2021), and with batch
calibration (Zhou et al. 2024, arXiv:2309.17249), which needs all tickets before the first label is known and is
therefore no option of `classify`. All score the same seeded draw, in float32.
"""

import time
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase

import click

from ticket_etl.arrays import FloatArray
from ticket_etl.process import prepare_memory

prepare_memory()  # as the command does, before torch is loaded

import numpy as np  # noqa: E402

from ticket_etl import fit  # noqa: E402
from ticket_etl.config import ScoringConfig  # noqa: E402
from ticket_etl.labels import Label, LabelSet, load_labels  # noqa: E402
from ticket_etl.learning import figures  # noqa: E402
from ticket_etl.models import find_model  # noqa: E402
from ticket_etl.opening import CONTENT_FREE  # noqa: E402
from ticket_etl.readings import LabelReading  # noqa: E402
from ticket_etl.scorers import score_plan  # noqa: E402
from ticket_etl.scoring import Scoring  # noqa: E402

_SHORT_EXAMPLE = 400
"""Characters."""


@click.command()
@click.argument("input", metavar="IN")
@click.option("--labels", type=click.Path(path_type=Path), required=True)
@click.option("--gold", required=True)
@click.option("--tickets", default=300, show_default=True, help="How many are measured on.")
@click.option("--model", default="smollm2", show_default=True)
@click.option("--text-column", "text_columns", multiple=True)
def main(input: str, labels: Path, gold: str, tickets: int, model: str, text_columns: tuple[str, ...]) -> None:
    """Print the table."""
    config = ScoringConfig(
        input=input, labels=labels, model=model, text_columns=text_columns, dtype="float32", strategy="packed+prefix"
    )
    label_set = load_labels(labels)
    labelled = fit.read_labelled(config, gold, label_set.names)
    drawn = np.random.default_rng(0).permutation(len(labelled.texts))
    measured, rest = drawn[:tickets], drawn[tickets:]
    texts, truth = [labelled.texts[at] for at in measured.tolist()], labelled.gold[measured]
    short = [at for at in rest.tolist() if len(labelled.texts[at]) <= _SHORT_EXAMPLE]
    examples = {int(labelled.gold[at]): labelled.texts[at] for at in short}
    click.echo("| prompt | zero-shot | `--calibrate` | batch calibration | tickets/s |")
    click.echo("|---|---|---|---|---:|")
    for name, variant in _variants(label_set, examples).items():
        scoring = Scoring(config, variant, find_model(model))
        started = time.monotonic()
        ids = [ticket.ids for ticket in scoring.encoder.encode(texts)]
        log_probs = score_plan(scoring.scorer, scoring.strategy, scoring.limits, ids)
        speed = len(texts) / (time.monotonic() - started)
        reading = scoring.reading
        assert isinstance(reading, LabelReading)
        prior = reading.calibrated([ticket.ids for ticket in scoring.encoder.encode(CONTENT_FREE)]).prior
        batch = np.log(np.exp(log_probs.astype(np.float64)).mean(axis=0))
        cells = [_cell(truth, values) for values in (log_probs, log_probs - prior, log_probs - batch)]
        click.echo(f"| {name} | {' | '.join(cells)} | {speed:.1f} |")


def _variants(label_set: LabelSet, examples: dict[int, str]) -> dict[str, LabelSet]:
    """The label set as it is told to the model; where labels have no description, some are the same."""
    bare = [Label(label.name) for label in label_set.labels]
    described = [replace(label, examples=()) for label in label_set.labels]
    told = [label.texts[0] for label in described]
    lettered = [Label(letter, text) for letter, text in zip(ascii_uppercase, told, strict=False)]
    shown = [replace(label, examples=(examples[at],)) for at, label in enumerate(described) if at in examples]
    variants = {"names": bare, "descriptions": described, "letters": lettered, "examples": shown}
    return {
        name: replace(label_set, labels=tuple(each))
        for name, each in variants.items()
        if len(each) == len(label_set.labels)
    }


def _cell(truth: np.ndarray, log_probs: FloatArray) -> str:
    accuracy, macro = figures(truth, log_probs.argmax(axis=1))
    return f"{accuracy:.3f} / {macro:.3f}"


if __name__ == "__main__":
    main()
