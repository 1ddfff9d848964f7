"""`ticket-etl fit`: a linear head learned from labelled tickets, chosen by cross-validation.

read       texts and gold labels; tickets without one of them, and repeated texts, are left out
features   pooled hidden states by the batches of `classify`, kept for the next fit
choose     logistic regression on standardised features; which states, and how strong the regularisation, is decided
           by the macro-F1 of stratified folds
compare    the same folds for zero-shot labels and for TF-IDF, so that the gain shows
save       the head fitted on all tickets, with standardisation folded into its weights
"""

import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ticket_etl.atomic import replace_atomically
from ticket_etl.config import ScoringConfig
from ticket_etl.errors import InputError, ModelError, OutputError, UsageError
from ticket_etl.features import FeatureReader
from ticket_etl.gold import open_gold
from ticket_etl.head import FeaturePart, Head
from ticket_etl.labeller import is_blank, text_key
from ticket_etl.models.places import cache_dirs_to_read, writable_cache
from ticket_etl.network import FloatArray
from ticket_etl.preflight import check_request, check_result_path
from ticket_etl.workload import open_workload_input

log = logging.getLogger("ticket_etl")

FOLDS = 4
INVERSE_STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""The candidates for C, scikit-learn's inverse strength of L2 regularisation."""

FEW_ROWS = 10
_NEVER = -1e4
"""Bias of a label without a single ticket: it is never given."""

_ZERO_SHOT, _TFIDF = "zero-shot", "TF-IDF"

Indices = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


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
class Choice:
    """A way to fit, and what it reached on the folds."""

    parts: tuple[FeaturePart, ...]
    strength: float
    accuracy: float
    macro_f1: float


@dataclass(frozen=True)
class FitOutcome:
    """What `fit` prints: figures are means over the folds, each measured on tickets that were not fitted on.

    few: labels with few tickets, with their number. min_score: the threshold learned for `precision`, and the share of
    tickets that reach it.
    """

    head: Path
    model: str
    tickets: int
    labels: int
    left_out: dict[str, int]
    unknown: dict[str, int]
    few: dict[str, int]
    chosen: Choice
    others: dict[str, tuple[float, float]]
    precision: float | None
    min_score: float | None
    coverage: float | None

    def __str__(self) -> str:
        others = [f", {count:,} {reason}" for reason, count in self.left_out.items() if count]
        rows = [("head", self.chosen.accuracy, self.chosen.macro_f1)]
        rows += [(name, *figures) for name, figures in self.others.items()]
        table = pl.DataFrame(rows, schema=["held out", "accuracy", "macro-F1"], orient="row")
        lines = [
            f"tickets     {self.tickets:,} with text and label, {self.labels} labels{''.join(others)}",
            *([f"unknown     {_counts(self.unknown)}: not in the label set"] if self.unknown else []),
            *([f"few         {_counts(self.few)}: fewer than {FEW_ROWS} tickets"] if self.few else []),
            f"chosen      {' + '.join(map(str, self.chosen.parts))}, C {self.chosen.strength:g},"
            f" by {FOLDS}-fold cross-validation",
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
        UsageError: --head is given for reading, IN is a stream, or there is no such column.
        InputError: fewer than two labels have tickets enough.
        OutputError: the head cannot be written.
    """
    if config.input == "-":
        raise UsageError("fit reads IN twice, and cannot do so from standard input; name a file")
    check_result_path("--head", head_path, config)
    request = check_request(config)
    names = request.labels.names
    labelled = read_labelled(config, gold, names)
    reader = FeatureReader(config, request.labels, request.folder)
    features, zero_shot = kept_features(reader, labelled.texts, on_progress)
    counts = Counter(labelled.gold.tolist())
    folds = make_folds(labelled.gold, config.seed)
    chosen, held_out = choose(features, part_sets(reader.parts), labelled.gold, folds)
    min_score, coverage = None, None
    if precision is not None:
        min_score, coverage = learn_threshold(held_out.max(axis=1), held_out.argmax(axis=1) == labelled.gold, precision)
    weight, bias = fit_weights(stack(features, chosen.parts), labelled.gold, chosen.strength, len(names))
    head = Head(names, chosen.parts, True, weight, bias, reader.bound_to, min_score)
    head.save(head_path)
    return FitOutcome(
        head=head_path,
        model=request.folder.name,
        tickets=len(labelled.texts),
        labels=len(counts),
        left_out=labelled.left_out,
        unknown=labelled.unknown,
        few={name: counts[at] for at, name in enumerate(names) if counts[at] < FEW_ROWS},
        chosen=chosen,
        others={
            _ZERO_SHOT: fold_figures(labelled.gold, zero_shot.argmax(axis=1), folds),
            _TFIDF: fold_figures(labelled.gold, tfidf_labels(labelled.texts, labelled.gold, folds), folds),
        },
        precision=precision,
        min_score=min_score,
        coverage=coverage,
    )


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


def make_folds(gold: Indices, seed: int) -> list[tuple[Indices, Indices]]:
    """Seeded stratified folds: indices to fit on, and to measure on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels with fewer tickets than folds: named in the outcome
        return list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(gold, gold))


def stack(features: dict[FeaturePart, FloatArray], parts: Sequence[FeaturePart]) -> Doubles:
    """Blocks side by side, each of unit length: float64, shape (texts, features)."""
    blocks = [features[part].astype(np.float64) for part in parts]
    return np.hstack([block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12) for block in blocks])


def choose(
    features: dict[FeaturePart, FloatArray],
    candidates: Sequence[tuple[FeaturePart, ...]],
    gold: Indices,
    folds: Sequence[tuple[Indices, Indices]],
) -> tuple[Choice, FloatArray]:
    """The candidate with the best macro-F1, and the probabilities it gave to held-out tickets: (texts, labels)."""
    labels = int(gold.max()) + 1
    best: tuple[Choice, FloatArray] | None = None
    for parts in candidates:
        values = stack(features, parts)
        for strength in INVERSE_STRENGTHS:
            held_out = np.zeros((len(gold), labels), dtype=np.float32)
            for fitted, measured in folds:
                weight, bias = fit_weights(values[fitted], gold[fitted], strength, labels)
                head = Head(tuple(map(str, range(labels))), parts, False, weight, bias)
                held_out[measured] = np.exp(head.log_probs(values[measured].astype(np.float32)))
            accuracy, macro_f1 = fold_figures(gold, held_out.argmax(axis=1), folds)
            if best is None or macro_f1 > best[0].macro_f1:
                best = Choice(parts, strength, accuracy, macro_f1), held_out
    assert best is not None
    return best


def fit_weights(values: Doubles, gold: Indices, strength: float, labels: int) -> tuple[FloatArray, FloatArray]:
    """Logistic regression on standardised features, as weights on the features themselves.

    Labels count alike, however many tickets they have (scikit-learn's `balanced` class weights).

    Returns:
        float32 of shapes (labels, features) and (labels,).
    """
    scaler = StandardScaler().fit(values)
    model = LogisticRegression(C=strength, class_weight="balanced", max_iter=300, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # weak candidates need not converge to lose
        model.fit(scaler.transform(values), gold)
    coefficients, intercepts = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # one row for both
        coefficients, intercepts = (
            np.vstack([-coefficients, coefficients]) / 2,
            np.hstack([-intercepts, intercepts]) / 2,
        )
    coefficients = coefficients / scaler.scale_
    weight = np.zeros((labels, values.shape[1]), dtype=np.float32)
    bias = np.full(labels, _NEVER, dtype=np.float32)
    weight[model.classes_] = coefficients
    bias[model.classes_] = intercepts - coefficients @ scaler.mean_
    return weight, bias


def tfidf_labels(texts: Sequence[str], gold: Indices, folds: Sequence[tuple[Indices, Indices]]) -> Indices:
    """What a bag of words and word pairs gives to held-out tickets: the baseline that needs no model."""
    given = np.zeros(len(gold), dtype=np.int64)
    for fitted, measured in folds:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=1)
        model = make_pipeline(words, LogisticRegression(C=10.0, class_weight="balanced", max_iter=300, tol=1e-3))
        model.fit([texts[at] for at in fitted.tolist()], gold[fitted])
        given[measured] = model.predict([texts[at] for at in measured.tolist()])
    return given


def fold_figures(gold: Indices, given: Indices, folds: Sequence[tuple[Indices, Indices]]) -> tuple[float, float]:
    """Accuracy and macro-F1 over all held-out tickets together; macro-F1 is over the labels that occur in gold."""
    measured = np.concatenate([each for _, each in folds])
    truth, label = gold[measured], given[measured]
    macro = f1_score(truth, label, average="macro", labels=np.unique(truth), zero_division=0)
    return float(accuracy_score(truth, label)), float(macro)


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
    try:
        folder = writable_cache() / "features"
        folder.mkdir(exist_ok=True)
        with replace_atomically(folder / name) as file:
            file.write(save(arrays | {_ZERO_SHOT: np.ascontiguousarray(zero_shot)}))
    except (ModelError, OSError, OutputError) as error:
        log.debug("features are not kept: %s", error)
    return features, zero_shot
