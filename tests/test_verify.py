"""How a verification counts: the judge of every strategy must not be fooled."""

import numpy as np
import pytest

from ticket_etl.verify import Disagreement, Verification, compare

EXPECTED = np.log(np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.4, 0.4, 0.2]], dtype=np.float32))


def test_same_labels_agree_and_ties_go_with_either() -> None:
    scores = EXPECTED.copy()
    scores[2] = scores[2, [1, 0, 2]] + np.array([0.0, 1e-4, 0.0], dtype=np.float32)
    outcome = compare(scores, EXPECTED)
    assert outcome.agrees.tolist() == [True, True, True]
    assert outcome.ties == 1
    assert outcome.max_drift == pytest.approx(1e-4, abs=1e-6)


def test_another_label_disagrees() -> None:
    outcome = compare(EXPECTED[[1, 1, 2]], EXPECTED)
    assert outcome.agrees.tolist() == [False, True, True]


@pytest.mark.parametrize("of_reference", [False, True])
def test_score_that_is_no_number_agrees_with_nothing(of_reference: bool) -> None:
    """Its first label is not the ticket's, and it is no tie."""
    spoilt = EXPECTED.copy()
    spoilt[0] = np.nan
    outcome = compare(EXPECTED, spoilt) if of_reference else compare(spoilt, EXPECTED)
    assert outcome.agrees.tolist() == [False, True, True]
    assert outcome.ties == 1
    assert outcome.max_drift == 0.0


def test_what_was_compared_is_said() -> None:
    """Below float32, how many labels rest on low precision: certification may have left none of a small sample."""
    wrong = Disagreement(3, "bug", "billing", 0.5)
    verification = Verification("packed", "bfloat16", 60, 0, 500, 1, 0.1, (wrong,))
    assert verification.exit_code == 8
    text = str(verification)
    assert "59 of 60 distinct tickets agree" in text
    assert "0 of them with their bfloat16 scores, 60 scored in float32 by certification" in text
    assert "row 3: 'bug', reference 'billing' by 0.5000" in text
    in_float32 = Verification("packed", "float32", 60, None, 500, 1, 1e-5, ())
    assert in_float32.exit_code == 0
    assert "certification" not in str(in_float32)
