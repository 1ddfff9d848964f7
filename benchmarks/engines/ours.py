"""ticket-etl itself, as `classify` scores a window: packed, prefix shared; bfloat16 certified.

    ours.py TASK float32|bfloat16

A nightly window has 2,048 tickets and a drift profile of earlier nights; so a certified pass here begins with a profile
and samples the same share of its tickets, 1/64. The profile is made of these very tickets, untimed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from serving import Engine, Task, Tickets, serve

from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.process import prepare_memory

prepare_memory()  # as the command does, before torch is loaded

import numpy as np  # noqa: E402

from ticket_etl import __version__  # noqa: E402
from ticket_etl.certify import Certifier, drift  # noqa: E402
from ticket_etl.config import ScoringConfig  # noqa: E402
from ticket_etl.drift_profile import DriftProfile  # noqa: E402
from ticket_etl.labels import load_labels  # noqa: E402
from ticket_etl.models import find_model  # noqa: E402
from ticket_etl.scorers import score_plan  # noqa: E402
from ticket_etl.scoring import Scoring  # noqa: E402


class Ours(Engine):
    """The strategy, the batches and the certification of a nightly run; re-scoring is part of the time."""

    def __init__(self, task: Task, dtype: str) -> None:
        options = task.options | {"labels": Path(task.options["labels"])}
        config = ScoringConfig(input="", dtype=dtype, **options)
        self._scoring = Scoring(config, load_labels(config.labels), find_model(config.model))
        prompt, used = self._scoring.prompt, self._scoring.dtype_name
        if [prompt.prefix.tolist(), prompt.suffix.tolist()] != [task.prefix, task.suffix]:
            raise RuntimeError("the prompt is not the one that the other engines get")
        self._profile = self._drift_profile(_arrays(task.tickets)) if self._scoring.certifier() else None
        self._certified: dict[str, Any] = {}
        self.version = __version__
        self.settings = f"{self._scoring.strategy.name}, {self._scoring.limits.batch_tokens} tokens a batch"
        if used != dtype:
            self.settings += f", in {used}, since this machine has no {dtype}"

    def _drift_profile(self, tickets: list[TokenIds]) -> DriftProfile:
        drifts = drift(self._scores(tickets), self._scoring.exact_scores(tickets))
        profile = DriftProfile.of(drifts.tolist(), today="")
        return replace(profile, drift_max=profile.bound)

    def _scores(self, tickets: list[TokenIds]) -> FloatArray:
        return score_plan(self._scoring.scorer, self._scoring.strategy, self._scoring.limits, tickets)

    def score(self, tickets: Tickets) -> list[int]:
        """See `Engine.score`."""
        ids = _arrays(tickets)
        scores = self._scores(ids)
        if self._profile is not None:
            certifier = Certifier(self._scoring.exact_scores, seed=0, profile=self._profile, least=1)
            scores = certifier.certify(scores, ids)
            self._certified = certifier.summary()
        labels: list[int] = scores.argmax(axis=1).tolist()
        return labels

    def facts(self) -> dict[str, Any]:
        """What certification did, where it did something."""
        if not self._certified:
            return {}
        note = f"scored in float32 too: {self._certified['sampled']} sampled, {self._certified['rescored']} close calls"
        return {"note": note, "certification": self._certified}


def _arrays(tickets: Tickets) -> list[TokenIds]:
    return [np.array(ticket, dtype=np.int32) for ticket in tickets]


if __name__ == "__main__":
    serve(Ours)
