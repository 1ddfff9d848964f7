"""Whether a run's labels and scores are spread like those of an earlier run, told from the earlier run's report.

The measure is the population stability index of two histograms with shares p and q,

    PSI = sum over bins of (p - q) * ln(p / q)

(the symmetrised Kullback-Leibler divergence of Jeffreys, 1946). It does not depend on the sizes of the runs, and its
rule of thumb is old: 0.1 or more is a shift worth a look, 0.25 or more a large one (N. Siddiqi, Credit Risk Scorecards,
Wiley, 2006). The rule alone is wrong for small runs, whose PSI is large by chance (B. Yurdakul and J. Naranjo,
Statistical properties of the population stability index, Journal of Risk Model Validation, 2020). So a shift is said
only if PSI is also beyond what chance makes of two runs of these sizes with the same true shares: the 99.9th percentile
of a parametric bootstrap from the pooled histogram. Large runs are thus judged by the size of the shift, small ones by
chance too, and a run of a few tickets hardly ever.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ticket_etl.errors import UsageError
from ticket_etl.fingerprint import parts_that_shift
from ticket_etl.process import readable

if TYPE_CHECKING:
    from ticket_etl.report import RunReport

SHIFT = 0.1
"""PSI from which on the shares have shifted."""

_CHANCE_PERCENTILE = 99.9
_CHANCE_DRAWS = 2_000
_NAMED_LABELS = 3
_THRESHOLDS = ("min_score", "min_margin")

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EarlierRun:
    """What drift is told from, as an earlier run's report has it.

    labels: labelled tickets by label; abstained: tickets without a certain label; scores: the score histogram.
    conditions: what makes labels differ on the same tickets: parts of the fingerprint, and thresholds.
    """

    path: Path
    finished: str
    labels: dict[str, int]
    abstained: int
    scores: list[dict[str, Any]]
    conditions: dict[str, Any]


def load_earlier_run(path: Path) -> EarlierRun:
    """Read the report of an earlier run.

    Raises:
        UsageError: there is no such file, or it is not a report of `classify`.
    """
    try:
        report = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read --compare-report {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError):  # not UTF-8, not JSON
        report = None
    try:
        return EarlierRun(
            path=path,
            finished=str(report["finished"]),
            labels={name: _count(number) for name, number in report["labels"].items()},
            abstained=_count(report["rows"].get("abstained", 0)),
            scores=[
                {"from": float(each["from"]), "to": float(each["to"]), "count": _count(each["count"])}
                for each in report["score_histogram"]
            ],
            conditions=conditions(report["fingerprint"], report["settings"]),
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        raise UsageError(
            f"--compare-report {path} is not a report of ticket-etl classify; name an earlier run's OUT.report.json"
        ) from None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ValueError(value)
    return value


def conditions(fingerprint: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What can change the labels of the same tickets: a drift beside such a change says little about the tickets."""
    return parts_that_shift(fingerprint) | {name.replace("_", " "): settings.get(name) for name in _THRESHOLDS}


def compare_runs(earlier: EarlierRun, report: "RunReport") -> dict[str, Any]:
    """What the report of a run says about its drift since an earlier one.

    Shares are fractions of the labelled and abstained tickets. `psi` is null where one of the runs has none, or where
    the histograms have other bins; `chance` is what PSI stays under by chance; `shifted` is the judgement.
    """
    names = list(dict.fromkeys([*earlier.labels, *report.labels]))
    before = np.array([*(earlier.labels.get(name, 0) for name in names), earlier.abstained], dtype=np.int64)
    after = np.array([*(report.labels.get(name, 0) for name in names), report.rows["abstained"]], dtype=np.int64)
    shares = [{"earlier": float(p), "now": float(q)} for p, q in zip(_shares(before), _shares(after), strict=True)]
    now = conditions(report.fingerprint, report.settings)
    return {
        "report": readable(str(earlier.path)),
        "finished": earlier.finished,
        "tickets": {"earlier": int(before.sum()), "now": int(after.sum())},
        "changed": [part for part in earlier.conditions | now if earlier.conditions.get(part) != now.get(part)],
        "labels": judge(before, after),
        "scores": _judge_scores(earlier.scores, report.score_histogram),
        "label_shares": dict(zip(names, shares, strict=False)),
        "abstained_share": shares[-1],
    }


def judge(before: Counts, after: Counts) -> dict[str, Any]:
    """PSI of two histograms over the same bins, int64 of shape (bins,), and whether it is a shift."""
    if not before.sum() or not after.sum():
        return {"psi": None, "chance": None, "shifted": False}
    psi, chance = float(stability_index(before, after)), chance_bound(before, after)
    return {"psi": psi, "chance": chance, "shifted": psi >= SHIFT and psi > chance}


def _judge_scores(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    edges, counts = zip(
        *(
            ([(each["from"], each["to"]) for each in bins], np.array([each["count"] for each in bins], dtype=np.int64))
            for bins in (before, after)
        ),
        strict=True,
    )
    return judge(*counts) if edges[0] == edges[1] else {"psi": None, "chance": None, "shifted": False}


def stability_index(before: Counts, after: Counts) -> npt.NDArray[np.float64]:
    """PSI of histograms, int64 of shape (..., bins), over their last axis.

    Half a ticket is added to every bin that is occupied in either, so that an empty one gives no infinity.

    >>> round(float(stability_index(np.array([500, 500]), np.array([600, 400]))), 3)
    0.04
    """
    occupied = 0.5 * ((before + after) > 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # bins that are empty in both
        p, q = ((counts + occupied) / (counts + occupied).sum(axis=-1, keepdims=True) for counts in (before, after))
        return np.where(occupied > 0, (p - q) * np.log(p / q), 0.0).sum(axis=-1)


def chance_bound(before: Counts, after: Counts) -> float:
    """What PSI stays under in 999 of 1,000 pairs of runs of these sizes whose true shares are the same. Seeded."""
    random = np.random.default_rng(0)
    pooled = _shares(before + after)
    pairs = [random.multinomial(int(counts.sum()), pooled, size=_CHANCE_DRAWS) for counts in (before, after)]
    return float(np.percentile(stability_index(*pairs), _CHANCE_PERCENTILE))


def _shares(counts: Counts) -> npt.NDArray[np.float64]:
    return counts / max(int(counts.sum()), 1)


def drift_warnings(drift: Mapping[str, Any]) -> list[str]:
    """A line for each of labels and scores that have shifted, with the labels that moved most."""
    changed = f"; changed since then: {', '.join(drift['changed'])}" if drift["changed"] else ""
    lines = []
    for what in ("labels", "scores"):
        if drift[what]["shifted"]:
            lines.append(
                f"{what} have shifted since {drift['report']} of {drift['finished']}"
                f" (PSI {drift[what]['psi']:.2f}, a shift from {SHIFT} on)"
                + (f": {_movers(drift)}" if what == "labels" else "")
                + changed
            )
    return lines


def _movers(drift: Mapping[str, Any]) -> str:
    shares = drift["label_shares"] | {"(abstained)": drift["abstained_share"]}
    moved = sorted(shares.items(), key=lambda item: -abs(item[1]["now"] - item[1]["earlier"]))
    return ", ".join(f"{name} {share['earlier']:.1%} -> {share['now']:.1%}" for name, share in moved[:_NAMED_LABELS])
