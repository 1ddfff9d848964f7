"""Learning a head from features: what is chosen, that nothing leaks, and that weights are the model they stand for."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the extra `fit` is not installed")

from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from ticket_etl import learning
from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.head import FeaturePart, Head
from ticket_etl.learning import (
    BALANCES,
    Examples,
    Learner,
    Recipe,
    Search,
    WordLearner,
    accuracy_and_macro_f1,
    make_folds,
)
from ticket_etl.trie import log_softmax

OWN, OTHER = FeaturePart("mean", 4), FeaturePart("mean", 2)
SIZE = 8


def clusters(count: int = 90, labels: int = 3, noise: float = 0.6, seed: int = 0) -> tuple[Examples, Examples]:
    """Tickets whose labels show in one part only, the other being noise, and hints at the clusters' centres."""
    random = np.random.default_rng(seed)
    gold = np.arange(count) % labels
    centres = random.normal(size=(labels, SIZE))
    noises = [random.normal(size=(rows, SIZE)).astype(np.float32) for rows in (count, labels)]
    telling = (centres[gold] + noise * random.normal(size=(count, SIZE))).astype(np.float32)
    hints = Examples({OWN: noises[1], OTHER: centres.astype(np.float32)}, no_words(labels), np.arange(labels))
    return Examples({OWN: noises[0], OTHER: telling}, no_words(count), gold), hints


def no_words(texts: int) -> csr_matrix:
    """One word, the same in all texts, so that it tells nothing."""
    return csr_matrix(np.tile([1.0, 0.0, 0.0, 0.0, 0.0], (texts, 1)))


def test_the_telling_features_are_chosen() -> None:
    tickets, hints = clusters()
    search = Search(tickets, hints, make_folds(tickets.gold, seed=0))
    recipe = learning.choose(search, [(OWN,), (OTHER,)])
    assert recipe.parts == (OTHER,)
    assert accuracy_and_macro_f1(search.gold, search.held_out(recipe).argmax(axis=1))[0] > 0.8


def test_held_out_figures_are_held_out() -> None:
    """On labels that nothing can tell, figures stay at chance, however well the learned tickets are known."""
    random = np.random.default_rng(0)
    tickets = Examples({OWN: random.normal(size=(90, 200)).astype(np.float32)}, no_words(90), np.arange(90) % 3)
    hints = Examples({OWN: random.normal(size=(3, 200)).astype(np.float32)}, no_words(3), np.arange(3))
    search = Search(tickets, hints, make_folds(tickets.gold, seed=0))
    recipe = learning.choose(search, [(OWN,)])
    assert accuracy_and_macro_f1(search.gold, search.held_out(recipe).argmax(axis=1))[0] < 0.5
    weight, bias = Learner(tickets, hints, (OWN,)).learn(recipe)
    assert accuracy_and_macro_f1(tickets.gold, (tickets.values((OWN,)) @ weight.T + bias).argmax(axis=1))[0] > 0.9


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("parts", [(OTHER,), (OWN, OTHER)])
def test_unwhitened_weights_are_scikit_learns_model(
    labels: int, balance: float, parts: tuple[FeaturePart, ...]
) -> None:
    """Standardisation, rotation, weights of tickets and hints, and two-label models, to its own probabilities."""
    everything, hints = clusters(labels=labels)
    tickets = everything.at(np.flatnonzero((everything.gold > 0) | (np.arange(90) % 4 == 0)))  # the first label is rare
    values, hinted = tickets.values(parts), hints.values(parts)
    weight, bias = Learner(tickets, hints, parts).learn(Recipe(parts, balance, 1.0, 0.3, 2.0))

    scaler = StandardScaler().fit(values)
    weights = np.bincount(tickets.gold)[tickets.gold] ** -balance
    weights = np.concatenate([weights / weights.mean(), [2.0] * labels])
    model = LogisticRegression(C=0.3, tol=1e-6).fit(
        scaler.transform(np.vstack([values, hinted])), np.concatenate([tickets.gold, hints.gold]), sample_weight=weights
    )
    head = Head(tuple("abc"[:labels]), parts, True, weight.astype(np.float32), bias.astype(np.float32))
    given = np.exp(head.log_probs(np.hstack([tickets.features[part] for part in parts]), ()))
    assert given == pytest.approx(model.predict_proba(scaler.transform(values)), abs=1e-2)


def test_whitening_counts_what_varies_within_labels_for_less() -> None:
    """A direction that shouts within every label hides a quiet one that tells them apart, until it is whitened."""
    random = np.random.default_rng(0)
    gold = np.arange(120) % 2
    quiet, loud = 0.1 * (2 * gold - 1) + 0.02 * random.normal(size=120), random.normal(size=120)
    mixed = np.stack([quiet + loud, loud, *random.normal(size=(SIZE - 2, 120))], axis=1)
    features = np.hstack([mixed, np.full((120, 1), 30.0)]).astype(np.float32)  # the last keeps unit length harmless
    tickets = Examples({OWN: features}, no_words(120), gold)
    hints = Examples(
        {OWN: np.stack([features[gold == label].mean(axis=0) for label in (0, 1)])}, no_words(2), np.arange(2)
    )
    search = Search(tickets, hints, make_folds(gold, seed=0))
    accuracies = [
        accuracy_and_macro_f1(search.gold, search.held_out(Recipe((OWN,), shrinkage=shrinkage)).argmax(axis=1))[0]
        for shrinkage in (1.0, 0.01)
    ]
    assert accuracies[1] > accuracies[0] + 0.1


def test_features_that_never_vary_are_harmless() -> None:
    tickets, hints = clusters()
    features = tickets.features[OTHER].copy()
    features[:, 3] = 0.0
    dead = Examples({OTHER: features}, tickets.words, tickets.gold)
    weight, bias = Learner(dead, hints, (OTHER,)).learn(Recipe((OTHER,)))
    assert np.isfinite(weight).all()
    assert np.isfinite(bias).all()


def test_label_without_tickets_has_a_score_and_is_not_given() -> None:
    tickets, hints = clusters()
    features = {part: np.vstack([values, -values[:2]]) for part, values in hints.features.items()}
    more = Examples(features, no_words(5), np.arange(5))
    weight, bias = Learner(tickets, more, (OTHER,)).learn(Recipe((OTHER,), trust=1.0))
    assert weight.shape == (5, SIZE)
    assert (tickets.values((OTHER,)) @ weight.T + bias).argmax(axis=1).max() == 2


@pytest.mark.parametrize(("count", "times"), [(30, 4), (300, 2), (900, 1)])
def test_few_tickets_are_measured_several_times(count: int, times: int) -> None:
    gold = np.arange(count) % 3
    measured = learning.measured_in(make_folds(gold, seed=0))
    assert np.bincount(measured).tolist() == [times] * count
    assert all(not set(learned) & set(held) for learned, held in make_folds(gold, seed=0))


def test_two_tickets_of_a_label_are_enough_for_folds() -> None:
    assert len(make_folds(np.array([0, 0, 1, 1, 2]), seed=0)) == 2 * learning.MOST_REPEATS


def test_calibration_finds_the_temperature_and_keeps_the_labels() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(2000, 3)) * 2
    gold = np.array([random.choice(3, p=np.exp(row) / np.exp(row).sum()) for row in logits])
    blunt = logits / 5
    log_probs, temperature = learning.calibrated(blunt.astype(np.float32), gold)
    assert temperature == pytest.approx(1 / 5, rel=0.1)
    assert (log_probs.argmax(axis=1) == logits.argmax(axis=1)).all()
    assert np.exp(log_probs).sum(axis=1) == pytest.approx(np.ones(2000), abs=1e-5)


TABLE = np.array([0, 1, 2, 3, 1, 4], dtype=np.int32)
"""Six tokens, two of which are one word."""


def spoken(count: int = 90, telling: bool = True, seed: int = 0) -> tuple[list[TokenIds], Examples, Examples]:
    """Tickets of two labels in which a word tells the label, or none does, and features that tell nothing."""
    random = np.random.default_rng(seed)
    gold = np.arange(count) % 2
    said = gold if telling else random.integers(2, size=count)
    tickets = [np.array([0, 1 + label, *random.choice([0, 3], size=5)], dtype=np.int32) for label in said]
    features, hinted = (random.normal(size=(rows, SIZE)).astype(np.float32) for rows in (count, 2))
    hints = [np.array([word], dtype=np.int32) for word in (1, 2)]
    return (
        tickets,
        Examples({OWN: features}, learning.word_counts(tickets, TABLE), gold),
        Examples({OWN: hinted}, learning.word_counts(hints, TABLE), np.arange(2)),
    )


def test_words_are_counted_by_ticket() -> None:
    counts = learning.word_counts([np.array([1, 4, 0]), np.array([], dtype=np.int32), np.array([5])], TABLE)
    assert counts.toarray().tolist() == [[1, 2, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]]


def test_words_of_a_head_are_scikit_learns_model() -> None:
    """What `classify` computes from token ids is TF-IDF of the words that were learned from, times the weights."""
    tickets, examples, hints = spoken()
    learner = WordLearner(examples, hints)
    words = learner.words(TABLE, 0.5)
    assert words.word_of.tolist() == [0, 1, 2, 3, 1, -1], "nothing was learned of the last"
    judge = TfidfTransformer(sublinear_tf=True).fit(np.vstack([examples.words.toarray(), hints.words.toarray()])[:, :4])
    expected = judge.transform(examples.words[:, :4]) @ learner.weight.T
    assert words.logits(tickets) == pytest.approx(0.5 * expected, abs=1e-5)
    assert learner.logits(examples.words) == pytest.approx(expected + learner.bias, abs=1e-9)
    unknown = [np.array([*ticket, 5, 5], dtype=np.int32) for ticket in tickets]
    assert (words.logits(unknown) == words.logits(tickets)).all(), "words that were not learned from say nothing"
    assert words.logits([np.array([5], dtype=np.int32)]).tolist() == [[0.0, 0.0]]


def learned_from(tickets: Examples, hints: Examples, part: FeaturePart) -> learning.Learned:
    return learning.learn(tickets, hints, TABLE, [(part,)], make_folds(tickets.gold, seed=0))


def test_words_speak_where_features_are_silent() -> None:
    tickets, examples, hints = spoken()
    learned = learned_from(examples, hints, OWN)
    assert accuracy_and_macro_f1(learned.gold, learned.log_probs.argmax(axis=1))[0] == 1.0
    assert learned.blend[1] > learned.blend[0]
    parts = learned.recipe.parts
    head = Head(("a", "b"), parts, True, learned.weight, learned.bias, words=learned.words)
    assert (head.log_probs(examples.features[OWN], tickets).argmax(axis=1) == examples.gold).all()


def test_words_that_tell_nothing_leave_the_features_alone() -> None:
    """The labels are those of the features, and what is held out is not better than chance by words either."""
    _, silent, silent_hints = spoken(telling=False)
    clear, clear_hints = clusters(labels=2)
    tickets = Examples({OTHER: clear.features[OTHER]}, silent.words, silent.gold)
    hints = Examples({OTHER: clear_hints.features[OTHER]}, silent_hints.words, silent_hints.gold)
    learned = learned_from(tickets, hints, OTHER)
    by_features = learned_from(clear, clear_hints, OTHER)
    assert accuracy_and_macro_f1(learned.gold, learned.log_probs.argmax(axis=1)) >= accuracy_and_macro_f1(
        by_features.gold, by_features.log_probs.argmax(axis=1)
    )
    assert learned.blend[1] < learned.blend[0]
    neither = learned_from(silent, silent_hints, OWN)
    assert accuracy_and_macro_f1(neither.gold, neither.log_probs.argmax(axis=1))[0] < 0.7


def test_likeness_helps_where_tickets_are_few() -> None:
    """It is added to the weights on the features themselves, and is held out like them."""
    everything, hints = clusters(count=600, noise=1.5)
    few, rest = everything.at(np.arange(12)), everything.at(np.arange(12, 600))
    centres = hints.features[OTHER] / np.linalg.norm(hints.features[OTHER], axis=1, keepdims=True)

    def learned(likeness: FloatArray | None) -> tuple[learning.Learned, float]:
        found = learning.learn(few, hints, TABLE, [(OTHER,)], make_folds(few.gold, seed=0), likeness)
        head = Head(tuple("abc"), (OTHER,), True, found.weight, found.bias, words=found.words)
        log_probs = head.log_probs(rest.features[OTHER], [TABLE[:1]] * 588)
        return found, accuracy_and_macro_f1(rest.gold, log_probs.argmax(axis=1))[0]

    (without, accuracy), (with_it, better) = learned(None), learned(5 * centres)
    assert len(without.blend) == 2
    assert with_it.blend[2] > 0
    assert better > accuracy
    assert "likeness" in str(with_it)


def test_blend_finds_the_weights_that_made_the_labels() -> None:
    random = np.random.default_rng(0)
    first, second = (log_softmax(2 * random.normal(size=(4000, 3))).astype(np.float32) for _ in range(2))
    odds = np.exp(0.5 * first + 1.5 * second)
    gold = np.array([random.choice(3, p=row / row.sum()) for row in odds])
    assert learning.find_blend([first, second], gold, np.ones(4000)) == pytest.approx([0.5, 1.5], rel=0.1)
    assert learning.find_blend([first, -second], gold, np.ones(4000))[1] == 0.0, "no weight is negative"
