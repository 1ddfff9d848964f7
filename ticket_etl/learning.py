"""Learning a linear head from features: what is tried, how it is chosen, and what it is worth on held-out tickets.

    standardise   each feature
    whiten        by the covariance within labels, shrunk towards the identity, so that what varies among tickets of one
                  label counts for less (A. O. Hatch et al., Within-class covariance normalization, 2006)
    regress       multinomial logistic regression with an L2 penalty; tickets of rare labels weigh more
    words         a second regression, on TF-IDF of the ticket's own tokens
    blend         the two regressions' logits, and an encoder's likeness to the labels, which knows more than a few
                  tickets do, by the weights under which held-out gold labels are likeliest
    calibrate     one temperature, so that scores are what they promise (C. Guo et al., 2017)

All of them are linear, and end in one weight matrix each for features and words. What the label file itself says of a
label, its name with description and its examples, is learned from like tickets, and never measured on.

Arrays in, values out; nothing is read or printed here.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize, minimize_scalar
from scipy.sparse import csr_matrix, vstack
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import RepeatedStratifiedKFold
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.head import FeaturePart
from ticket_etl.trie import log_softmax
from ticket_etl.words import Words

BALANCES = (1.0, 0.5)
SHRINKAGES = (0.9, 0.7, 0.5, 0.3)
CS = (0.01, 0.001, 0.003, 0.03, 0.1)
TRUSTS = (10.0, 1.0)
"""What is tried; the first of each stands until its turn comes."""

WORDS_STRENGTH, WORDS_BALANCE, WORDS_TRUST = 10.0, 1.0, 30.0
"""How words are learned from, see `Recipe`: less hangs on it, so it is not searched."""

BLEND_BALANCE = 1 / 3
"""What balances the labels of the tickets that the blend is found on, see `Recipe.balance`."""

FOLDS = 4
REPEAT_UP_TO, MOST_REPEATS = 800, 4
"""Folds are drawn again until so many tickets are measured, or so many times."""

one_thread = threadpool_limits.wrap(limits=1, user_api="blas")
"""Of matrix products as small as a fit's, threads mostly wait for one another: seen to take twenty times as long."""

Indices = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
Folds = Sequence[tuple[Indices, Indices]]
"""Indices of tickets to learn from, and to measure on."""


@dataclass(frozen=True)
class Recipe:
    """A way to learn a head.

    parts: the features, side by side, each part of unit length.
    balance: tickets weigh their label's count to the power of minus this; at 1 labels count alike, at 0 tickets do.
    shrinkage: of the covariance within labels; 1 would be no whitening.
    c: scikit-learn's C, the inverse strength of the L2 penalty.
    trust: what a text of the label file weighs, in average tickets.
    """

    parts: tuple[FeaturePart, ...]
    balance: float = BALANCES[0]
    shrinkage: float = SHRINKAGES[0]
    c: float = CS[0]
    trust: float = TRUSTS[0]

    def __str__(self) -> str:
        parts = " + ".join(map(str, self.parts))
        settings = {"balance": self.balance, "shrinkage": self.shrinkage, "C": self.c, "trust": self.trust}
        return ", ".join([parts, *(f"{name} {value:g}" for name, value in settings.items())])


@dataclass(frozen=True)
class Examples:
    """Texts whose labels are known.

    features: float32 of shape (texts, size) for each part.
    words: counts of words, shape (texts, words).
    gold: int64, shape (texts,): indices of labels.
    """

    features: Mapping[FeaturePart, FloatArray]
    words: csr_matrix
    gold: Indices

    def at(self, rows: Indices) -> "Examples":
        """Some of them."""
        return Examples(
            {part: values[rows] for part, values in self.features.items()}, self.words[rows], self.gold[rows]
        )

    def values(self, parts: Sequence[FeaturePart]) -> Doubles:
        """Blocks side by side, each of unit length: float64, shape (texts, features)."""
        blocks = [self.features[part].astype(np.float64) for part in parts]
        return np.hstack([block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12) for block in blocks])


class Learner:
    """Learns heads from the same examples by different recipes; what these share is computed once.

    Args:
        tickets: what is learned from.
        hints: what the label file says; at least one text of each label.
        parts: the features.
    """

    def __init__(self, tickets: Examples, hints: Examples, parts: Sequence[FeaturePart]) -> None:
        values = tickets.values(parts)
        labels = int(hints.gold.max()) + 1
        self._scaler = StandardScaler().fit(values)
        standard = self._scaler.transform(values)
        span = PCA().fit(standard)  # tickets are often fewer than features, and span fewer directions
        spanned = span.transform(standard)
        counts = np.bincount(tickets.gold, minlength=labels)
        centroids = np.zeros((labels, spanned.shape[1]))
        np.add.at(centroids, tickets.gold, spanned)
        within = spanned - (centroids / np.maximum(counts, 1)[:, None])[tickets.gold]
        variances, directions = np.linalg.eigh(within.T @ within)
        mean = max(variances.sum() / values.shape[1], 1e-12)
        self._variances = np.maximum(variances, 0.0) / mean
        self._axes = span.components_.T @ directions
        self._rows = np.vstack([spanned @ directions, self._scaler.transform(hints.values(parts)) @ self._axes])
        self._gold = np.concatenate([tickets.gold, hints.gold])
        self._count_of = counts[tickets.gold].astype(np.float64)

    def learn(self, recipe: Recipe) -> tuple[Doubles, Doubles]:
        """Weights on the features themselves, and biases: float64 of shapes (labels, features) and (labels,)."""
        scale = np.sqrt((1 - recipe.shrinkage) * self._variances + recipe.shrinkage)
        weights = sample_weights(self._count_of, recipe.balance, len(self._rows), recipe.trust)
        coefficients, intercepts = regress(self._rows / scale, self._gold, weights, recipe.c)
        weight = (coefficients / scale) @ self._axes.T / self._scaler.scale_
        return weight, intercepts - weight @ self._scaler.mean_


def regress(rows: Any, gold: Indices, weights: Doubles, c: float) -> tuple[Doubles, Doubles]:
    """Multinomial logistic regression: coefficients (labels, columns), intercepts (labels,); float64."""
    model = LogisticRegression(C=c, max_iter=300, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # weak candidates need not converge to lose
        model.fit(rows, gold, sample_weight=weights)
    if len(model.intercept_) > 1:
        return model.coef_, model.intercept_
    # one row for both of two labels
    return np.vstack([-model.coef_, model.coef_]) / 2, np.hstack([-model.intercept_, model.intercept_]) / 2


def sample_weights(counts: Doubles, balance: float, texts: int, trust: float) -> Doubles:
    """What tickets and, behind them, hints weigh: float64, shape (texts,); see `Recipe`.

    Args:
        counts: of each ticket, how many have its label.
    """
    weights = counts**-balance
    return np.concatenate([weights / weights.mean(), np.full(texts - len(weights), trust)])


class WordLearner:
    """Learns what words say; see `Words`.

    weight, bias: float64 of shapes (labels, words that were learned from) and (labels,).
    """

    def __init__(self, tickets: Examples, hints: Examples) -> None:
        counts = vstack([tickets.words, hints.words]).tocsr()
        self._seen = np.unique(counts.indices)  # a word that nothing was learned of is no word
        self._tfidf = TfidfTransformer(sublinear_tf=True)
        rows = self._tfidf.fit_transform(counts[:, self._seen])
        of_label = np.bincount(tickets.gold)[tickets.gold].astype(np.float64)
        weights = sample_weights(of_label, WORDS_BALANCE, counts.shape[0], WORDS_TRUST)
        gold = np.concatenate([tickets.gold, hints.gold])
        self.weight, self.bias = regress(rows, gold, weights, WORDS_STRENGTH)

    def logits(self, counts: csr_matrix) -> Doubles:
        """Logits of tickets by their word counts: shape (tickets, labels)."""
        return np.asarray(self._tfidf.transform(counts[:, self._seen]) @ self.weight.T + self.bias)

    def words(self, table: TokenIds, scale: float) -> Words:
        """What a head keeps of it: the words that were learned from, their weights times `scale`."""
        place = np.full(int(table.max()) + 1, -1, dtype=np.int32)
        place[self._seen] = np.arange(len(self._seen))
        return Words(place[table], self._tfidf.idf_.astype(np.float32), (scale * self.weight).astype(np.float32))


def word_counts(tickets: Sequence[TokenIds], table: TokenIds) -> csr_matrix:
    """How often each word of a table occurs in each ticket: shape (tickets, words)."""
    rows = np.repeat(np.arange(len(tickets)), list(map(len, tickets)))
    words = table[np.concatenate(tickets)]
    return csr_matrix((np.ones(len(words)), (rows, words)), shape=(len(tickets), int(table.max()) + 1))


class Search:
    """Recipes held against each other on the same folds.

    gold: int64, shape (held out,): the true labels of the tickets that are measured, fold after fold.
    """

    def __init__(self, tickets: Examples, hints: Examples, folds: Folds) -> None:
        self._tickets, self._hints, self._folds = tickets, hints, folds
        self._learners: tuple[tuple[FeaturePart, ...], list[Learner]] = ((), [])
        self._tried: dict[Recipe, FloatArray] = {}
        self.gold = tickets.gold[measured_in(folds)]

    def held_out(self, recipe: Recipe) -> FloatArray:
        """Log-probabilities by heads that were not learned from the ticket: float32, shape (held out, labels)."""
        if recipe not in self._tried:
            if self._learners[0] != recipe.parts:
                learners = [Learner(self._tickets.at(rows), self._hints, recipe.parts) for rows, _ in self._folds]
                self._learners = recipe.parts, learners
            values, logits = self._tickets.values(recipe.parts), []
            for learner, (_, measured) in zip(self._learners[1], self._folds, strict=True):
                weight, bias = learner.learn(recipe)
                logits.append(values[measured] @ weight.T + bias)
            self._tried[recipe] = log_softmax(np.concatenate(logits)).astype(np.float32)
        return self._tried[recipe]

    def best(self, recipes: Iterable[Recipe]) -> Recipe:
        """The one with the highest macro-F1 plus half the accuracy, which is less noisy; the first of equals."""

        def merit(recipe: Recipe) -> float:
            accuracy, macro_f1 = accuracy_and_macro_f1(self.gold, self.held_out(recipe).argmax(axis=1))
            return macro_f1 + accuracy / 2

        return max(recipes, key=merit)


@dataclass(frozen=True)
class Learned:
    """What was learned from labelled tickets.

    weight, bias, words: of a `Head`, calibrated.
    blend: what the log-probabilities of features, of words and of likeness count for, as far as there are any.
    gold, log_probs: true labels, int64 of shape (held out,), and log-probabilities, float32 of shape (held out,
        labels), by heads that were not learned from the ticket.
    """

    recipe: Recipe
    weight: FloatArray
    bias: FloatArray
    words: Words
    blend: tuple[float, ...]
    gold: Indices
    log_probs: FloatArray

    def __str__(self) -> str:
        shares = (share / max(sum(self.blend), 1e-12) for share in self.blend)
        blend = zip(("features", "words", "likeness"), shares, strict=False)
        return f"{self.recipe}; {', '.join(f'{name} {share:.0%}' for name, share in blend)}"


@one_thread
def learn(
    tickets: Examples,
    hints: Examples,
    table: TokenIds,
    part_sets: Sequence[tuple[FeaturePart, ...]],
    folds: Folds,
    likeness: FloatArray | None = None,
) -> Learned:
    """Learn a head: choose how on the folds, then learn from all tickets.

    Args:
        table: the word that each token id stands for.
        part_sets: which features may be joined; each begins with the same part.
        likeness: an encoder's zero-shot weights on that part at unit length, shape (labels, size).
    """
    search = Search(tickets, hints, folds)
    recipe = choose(search, part_sets)
    by_words = [WordLearner(tickets.at(learned), hints).logits(tickets.words[measured]) for learned, measured in folds]
    experts: list[npt.NDArray[np.floating]] = [search.held_out(recipe), log_softmax(np.concatenate(by_words))]
    if likeness is not None:
        values = tickets.values(recipe.parts[:1])[measured_in(folds)]
        experts.append(log_softmax(values @ likeness.T.astype(np.float64)))
    counts = np.bincount(search.gold)[search.gold].astype(np.float64)
    blend = find_blend(experts, search.gold, counts**-BLEND_BALANCE)
    log_probs, temperature = calibrated(blended(blend, experts), search.gold)
    blend = blend / temperature
    weight, bias = Learner(tickets, hints, recipe.parts).learn(recipe)
    weight *= blend[0]
    if likeness is not None:
        weight[:, : likeness.shape[1]] += blend[2] * likeness
    by_word = WordLearner(tickets, hints)
    return Learned(
        recipe,
        weight.astype(np.float32),
        (blend[0] * bias + blend[1] * by_word.bias).astype(np.float32),
        by_word.words(table, blend[1]),
        tuple(blend.tolist()),
        search.gold,
        log_probs,
    )


def find_blend(experts: Sequence[npt.NDArray[np.floating]], gold: Indices, weights: Doubles) -> Doubles:
    """The weights, zero or more, of log-probabilities under whose sum the gold labels are likeliest.

    Stacking (D. Wolpert, Stacked generalization, 1992) with one parameter an expert; the loss is convex in them.

    Args:
        experts: each of shape (tickets, labels).
        weights: what each ticket counts for, shape (tickets,).
    """
    rows = np.arange(len(gold))

    def loss(blend: Doubles) -> float:
        return -float((weights * blended(blend, experts)[rows, gold]).mean())

    return minimize(loss, [0.5] * len(experts), method="L-BFGS-B", bounds=[(0, None)] * len(experts)).x


def blended(blend: Doubles, experts: Sequence[npt.NDArray[np.floating]]) -> Doubles:
    """Log-probabilities of the weighted sum: float64, shape (tickets, labels)."""
    return log_softmax(sum(weight * expert.astype(np.float64) for weight, expert in zip(blend, experts, strict=True)))


def choose(search: Search, part_sets: Sequence[tuple[FeaturePart, ...]]) -> Recipe:
    """The best recipe that is found by settling one thing after the other, in the order of `Recipe`."""
    best = search.best(map(Recipe, part_sets))
    axes: dict[str, Sequence[Any]] = {
        "balance": BALANCES,
        "shrinkage": SHRINKAGES,
        "c": CS,
        "trust": TRUSTS,
    }
    for name, values in axes.items():
        best = search.best([replace(best, **{name: value}) for value in values])
    return best


def make_folds(gold: Indices, seed: int) -> Folds:
    """Seeded stratified folds; where tickets are few, several times over, since one draw says little."""
    repeats = min(MOST_REPEATS, max(1, REPEAT_UP_TO // len(gold)))
    folds = min(FOLDS, int(np.bincount(gold).max()))  # scikit-learn wants one label that is in each of them
    splitter = RepeatedStratifiedKFold(n_splits=folds, n_repeats=repeats, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels with fewer tickets than folds: `fit` names them
        return list(splitter.split(gold, gold))


def measured_in(folds: Folds) -> Indices:
    """The tickets that are measured, fold after fold."""
    return np.concatenate([measured for _, measured in folds])


def accuracy_and_macro_f1(gold: Indices, given: Indices) -> tuple[float, float]:
    """Accuracy, and macro-F1 over the labels that occur in gold."""
    macro = f1_score(gold, given, average="macro", labels=np.unique(gold), zero_division=0)
    return float(accuracy_score(gold, given)), float(macro)


def calibrated(log_probs: npt.NDArray[np.floating], gold: Indices) -> tuple[FloatArray, float]:
    """Log-probabilities at the temperature at which the gold labels are the most likely, and that temperature."""
    logits = log_probs.astype(np.float64)
    rows = np.arange(len(gold))

    def loss(log_temperature: float) -> float:
        return -float(log_softmax(logits / np.exp(log_temperature))[rows, gold].mean())

    temperature = float(np.exp(minimize_scalar(loss, bounds=(-3.0, 3.0), method="bounded").x))
    return log_softmax(logits / temperature).astype(np.float32), temperature
