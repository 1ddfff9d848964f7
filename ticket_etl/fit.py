"""`ticket-etl fit`: a linear head learned from labelled tickets, chosen by cross-validation.

read       texts and gold labels; tickets without one of them, and repeated texts, are left out
features   pooled hidden states by the batches of `classify`, kept for the next fit
choose     how to learn, by what each way reaches on the same stratified folds (`learning`)
compare    the same folds for zero-shot labels and for TF-IDF, so that the gain shows
save       the head learned from all tickets
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from ticket_etl.arrays import FloatArray
from ticket_etl.atomic import replace_atomically
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import InputError, ModelError, OutputError, UsageError
from ticket_etl.features import FeatureReader
from ticket_etl.gold import open_gold
from ticket_etl.head import FeaturePart, Head
from ticket_etl.labeller import is_blank, text_key
from ticket_etl.labels import LabelSet
from ticket_etl.learning import (
    Examples,
    Folds,
    Indices,
    Learned,
    accuracy_and_macro_f1,
    learn,
    make_folds,
    measured_in,
    one_thread,
    word_counts,
)
from ticket_etl.models.places import cache_dirs_to_read, writable_cache
from ticket_etl.preflight import check_result_path, read_request
from ticket_etl.workload import open_workload_input

log = logging.getLogger("ticket_etl")

FEW_ROWS = 10
_KEPT_FEATURES = 8
"""Files of features in the cache folder, one for each fit on other texts or with another model; the oldest goes."""

_HEAD, _ZERO_SHOT, _TFIDF = "head", "zero-shot", "TF-IDF"


@dataclass(frozen=True)
class LabelledTexts:
    """What a head is learned from.

    texts, gold: distinct texts and the index of each one's label.
    left_out: tickets that are not among them, by reason.
    unknown: gold labels that are not in the label set, with their tickets.
    """

    texts: list[str]
    gold: Indices
    left_out: dict[str, int]
    unknown: dict[str, int]


@dataclass(frozen=True)
class FitOutcome:
    """What `fit` prints.

    few: labels with few tickets, with their number.
    held_out: accuracy and macro-F1 on tickets that were not learned from, of the head and of what it must beat.
    min_score: the threshold learned for `precision`; coverage: the share of held-out tickets that reach it.
    """

    head: Path
    model: str
    tickets: int
    labels: int
    left_out: dict[str, int]
    unknown: dict[str, int]
    few: dict[str, int]
    chosen: str
    held_out: dict[str, tuple[float, float]]
    precision: float | None
    min_score: float | None
    coverage: float | None

    def __str__(self) -> str:
        others = [f", {count:,} {reason}" for reason, count in self.left_out.items() if count]
        rows = [(name, *reached) for name, reached in self.held_out.items()]
        table = pl.DataFrame(rows, schema=["held out", "accuracy", "macro-F1"], orient="row")
        lines = [
            f"tickets     {self.tickets:,} with text and label, {self.labels} labels{''.join(others)}",
            *([f"unknown     {_counts(self.unknown)}: not in the label set"] if self.unknown else []),
            *([f"few         {_counts(self.few)}: fewer than {FEW_ROWS} tickets"] if self.few else []),
            f"chosen      {self.chosen}, by cross-validation",
            f"wrote       {self.head} (for {self.model})",
        ]
        if self.precision is not None:
            lines.append(
                f"threshold   no score promises a precision of {self.precision:.0%}; none is set"
                if self.min_score is None
                else f"threshold   {self.min_score:.3f} for a precision of {self.precision:.0%};"
                f" {self.coverage:.0%} of the tickets reach it"
            )
        with pl.Config(
            tbl_hide_dataframe_shape=True,
            tbl_hide_column_data_types=True,
            tbl_formatting="ASCII_MARKDOWN",
            float_precision=3,
        ):
            return "\n".join([*lines, str(table)])


def _counts(labels: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in labels.items())


def fit_input(
    config: ScoringConfig,
    gold: str,
    head_path: Path,
    *,
    precision: float | None,
    on_progress: Callable[[int, int], None],
) -> FitOutcome:
    """Learn a head from the tickets of IN and write it.

    Args:
        gold: the column with the true labels.
        precision: learn the score from which on this share of labels was right on held-out tickets.

    Raises:
        UsageError: IN is a stream, or there is no such column.
        InputError: fewer than two labels have tickets enough.
        OutputError: the head cannot be written.
    """
    if config.input == "-":
        raise UsageError("fit reads IN twice, and cannot do so from standard input; name a file")
    check_result_path("--head", head_path, config)
    request = read_request(config)
    names = request.labels.names
    labelled = read_labelled(config, gold, names)
    reader = FeatureReader(config, request.labels, request.folder)
    labelled, tickets, zero_shot, hints = read_examples(reader, labelled, request.labels, on_progress)
    folds = make_folds(tickets.gold, config.seed)
    learned = learn_head(reader, tickets, hints, folds)
    given = learned.log_probs.argmax(axis=1)
    held_out = {
        _HEAD: accuracy_and_macro_f1(learned.gold, given),
        _ZERO_SHOT: accuracy_and_macro_f1(learned.gold, zero_shot[measured_in(folds)].argmax(axis=1)),
        _TFIDF: accuracy_and_macro_f1(learned.gold, tfidf_labels(labelled.texts, labelled.gold, folds)),
    }
    min_score, coverage = None, None
    if precision is not None:
        scores = np.exp(learned.log_probs).max(axis=1)
        min_score, coverage = learn_threshold(scores, given == learned.gold, precision)
    make_head(learned, names, reader, min_score).save(head_path)
    counts = Counter(tickets.gold.tolist())
    return FitOutcome(
        head=head_path,
        model=request.folder.name,
        tickets=len(tickets.gold),
        labels=len(counts),
        left_out=labelled.left_out,
        unknown=labelled.unknown,
        few={name: counts[at] for at, name in enumerate(names) if counts[at] < FEW_ROWS},
        chosen=str(learned),
        held_out=held_out,
        precision=precision,
        min_score=min_score,
        coverage=coverage,
    )


def learn_head(reader: FeatureReader, tickets: Examples, hints: Examples, folds: Folds) -> Learned:
    """Learn from what a reader has read."""
    return learn(tickets, hints, reader.word_table, part_sets(reader.parts), folds, reader.likeness)


def make_head(learned: Learned, names: tuple[str, ...], reader: FeatureReader, min_score: float | None = None) -> Head:
    """The head that was learned, bound to what its features were read from."""
    parts, bound_to = learned.recipe.parts, reader.bound_to
    return Head(names, parts, True, learned.weight, learned.bias, bound_to, min_score, learned.words)


def read_labelled(config: ScoringConfig, gold: str, names: Sequence[str]) -> LabelledTexts:
    """Read texts with their gold labels; of a text that occurs more than once, the first."""
    index_of = {name: at for at, name in enumerate(names)}
    left_out = dict.fromkeys(("without text", "without label", "with a text seen before"), 0)
    unknown: Counter[str] = Counter()
    texts: dict[str, int] = {}
    with open_workload_input(config) as tickets, open_gold(config.input, gold, config.bad_records) as truths:
        pairs = zip(chain.from_iterable(tickets.texts()), chain.from_iterable(truths.texts()), strict=True)
        for text, truth in pairs:
            if text is None or is_blank(text):
                left_out["without text"] += 1
            elif truth is None or is_blank(truth):
                left_out["without label"] += 1
            elif truth not in index_of:
                unknown[truth] += 1
            elif text in texts:
                left_out["with a text seen before"] += 1
            else:
                texts[text] = index_of[truth]
    enough = sum(count >= 2 for count in Counter(texts.values()).values())
    if enough < 2:
        raise InputError(
            f"{config.input}: {enough} of the {len(names)} labels have two tickets or more in column '{gold}'; at least"
            " two labels need them"
            + (f" (not in the label set: {_counts(dict(unknown.most_common(5)))})" if unknown else "")
        )
    return LabelledTexts(
        list(texts), np.array(list(texts.values()), dtype=np.int64), left_out, dict(unknown.most_common())
    )


def part_sets(parts: Sequence[FeaturePart]) -> list[tuple[FeaturePart, ...]]:
    """Which features may be joined: the model's own alone, with those of other layers, and all there are."""
    own = parts[0]
    deeper = (own, *(part for part in parts[1:] if part.layer != own.layer))
    return list(dict.fromkeys([(own,), deeper, tuple(parts)]))


@one_thread
def tfidf_labels(texts: Sequence[str], gold: Indices, folds: Folds) -> Indices:
    """What a bag of words and word pairs gives to held-out tickets, fold after fold: the baseline without a model."""
    given = []
    for learned, measured in folds:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=1)
        model = make_pipeline(words, LogisticRegression(C=10.0, class_weight="balanced", max_iter=300, tol=1e-3))
        model.fit([texts[at] for at in learned.tolist()], gold[learned])
        given.append(model.predict([texts[at] for at in measured.tolist()]))
    return np.concatenate(given)


def learn_threshold(
    scores: FloatArray, right: npt.NDArray[np.bool_], precision: float
) -> tuple[float | None, float | None]:
    """The lowest score from which on labels were right at least this often, and the share of tickets that reach it.

    >>> learn_threshold(np.array([0.9, 0.8, 0.6]), np.array([True, True, False]), 1.0)
    (0.8, 0.6666666666666666)
    """
    order = np.argsort(-scores, kind="stable")
    share = right[order].cumsum() / np.arange(1, len(order) + 1)
    last = np.append(scores[order][1:] < scores[order][:-1], True)  # equal scores stand or fall together
    good = np.flatnonzero((share >= precision) & last)
    if not len(good):
        return None, None
    return float(scores[order][good[-1]]), float((good[-1] + 1) / len(order))


def read_examples(
    reader: FeatureReader,
    labelled: LabelledTexts,
    labels: LabelSet,
    on_progress: Callable[[int, int], None],
) -> tuple[LabelledTexts, Examples, FloatArray, Examples]:
    """What there is to learn from.

    Returns:
        The labelled texts whose features could be read, their features, their zero-shot log-probabilities, and what the
        label file says of the labels.
    """
    said = [(text, at) for at, label in enumerate(labels.labels) for text in label.texts]
    texts = [*labelled.texts, *(text for text, _ in said)]
    features, zero_shot = kept_features(reader, texts, on_progress)
    gold = np.concatenate([labelled.gold, np.array([at for _, at in said], dtype=np.int64)])
    finite = np.all([np.isfinite(values).all(axis=1) for values in features.values()], axis=0)
    usable = finite[: len(labelled.texts)]
    if not finite[len(labelled.texts) :].all():
        raise ModelError(
            "what the label file says of a label did not fit in memory; free some, or shorten its examples"
        )
    words = word_counts(reader.encode(texts), reader.word_table)
    everything, count = Examples(features, words, gold), len(labelled.texts)
    kept = np.flatnonzero(usable)
    left = replace(
        labelled,
        texts=[labelled.texts[at] for at in kept.tolist()],
        gold=labelled.gold[kept],
        left_out=labelled.left_out | {"that did not fit in memory": count - len(kept)},
    )
    return left, everything.at(kept), zero_shot[kept], everything.at(np.arange(count, len(gold)))


def kept_features(
    reader: FeatureReader, texts: Sequence[str], on_progress: Callable[[int, int], None]
) -> tuple[dict[FeaturePart, FloatArray], FloatArray]:
    """Features and zero-shot log-probabilities, from an earlier fit on the same texts if there was one."""
    digest = hashlib.sha256(repr((reader.fingerprint, reader.parts)).encode())
    for text in texts:
        digest.update(text_key(text))
    name = f"{digest.hexdigest()[:24]}.safetensors"
    for folder in cache_dirs_to_read():
        try:
            arrays = load_file(folder / "features" / name)
            return {part: arrays[str(part)] for part in reader.parts}, arrays[_ZERO_SHOT]
        except (OSError, SafetensorError, KeyError):
            continue
    features, zero_shot = reader.read(texts, on_progress)
    arrays = {str(part): np.ascontiguousarray(values) for part, values in features.items()}
    if not all(np.isfinite(values).all() for values in arrays.values()):
        return features, zero_shot  # what did not fit in memory may fit the next time
    try:
        folder = writable_cache() / "features"
        folder.mkdir(exist_ok=True)
        with replace_atomically(folder / name) as file:
            file.write(save(arrays | {_ZERO_SHOT: np.ascontiguousarray(zero_shot)}))
        forget_oldest(folder)
    except (ModelError, OSError, OutputError) as error:
        log.debug("features are not kept: %s", error)
    return features, zero_shot


def forget_oldest(folder: Path) -> None:
    """Bound the kept features: a file holds some kilobytes for every ticket."""
    newest_first = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in newest_first[_KEPT_FEATURES:]:
        path.unlink(missing_ok=True)
