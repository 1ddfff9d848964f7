"""What every scoring command needs: labels, model, encoder and scorer, made from a configuration."""

import logging
from collections.abc import Sequence

import torch

from ticket_etl.cache import LabelCache
from ticket_etl.certify import Certifier
from ticket_etl.config import AUTO_BATCH_TOKENS, AUTO_BATCH_TOKENS_ELSEWHERE, ScoringConfig
from ticket_etl.errors import UsageError
from ticket_etl.head import Head
from ticket_etl.kernels import BFLOAT16, FLOAT32
from ticket_etl.labeller import Labeller
from ticket_etl.labels import LabelSet
from ticket_etl.machine import choose_device, set_threads
from ticket_etl.models import ModelFolder
from ticket_etl.network import FloatArray, Network
from ticket_etl.opening import open_model
from ticket_etl.plan import Limits
from ticket_etl.prompt import Prompt, TokenIds
from ticket_etl.readings import Reading
from ticket_etl.scorers import Reference, build_scorer, score_plan
from ticket_etl.strategies import STRATEGIES, Strategy
from ticket_etl.tally import Tally

log = logging.getLogger("ticket_etl")


class Scoring:
    """A loaded model with everything around it.

    Args:
        head: the fitted head that reads labels, if one does.
        features: read features, for those who fit a head, instead of labels.

    Raises:
        ModelError: the model cannot be loaded.
        UsageError: the device is missing, the labels do not suit the model, or the head belongs to something else.
    """

    def __init__(
        self,
        config: ScoringConfig,
        labels: LabelSet,
        folder: ModelFolder,
        *,
        head: Head | None = None,
        features: bool = False,
    ) -> None:
        self.labels = labels
        self.folder = folder
        self.head = head
        self.threads = set_threads()
        self._config = config
        device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, device)
        # On a CPU one float32 model does it all: its matrix products can be switched to bfloat16 and back.
        loaded = torch.float32 if device == "cpu" else self.dtype
        opened = open_model(config, labels, folder, device, loaded)
        self.encoder = opened.encoder
        low = self.dtype == torch.bfloat16
        plain: Reading = opened.feature_reading() if features else opened.reading(head)
        exact = plain
        if loaded != torch.float32:
            exact = open_model(config, labels, folder, device, torch.float32).reading(head)
        self.reading = plain.at(BFLOAT16 if low else FLOAT32)
        if loaded == torch.float32 and low and not self.model.is_low_precision:
            log.warning("no bfloat16 matrix products on this machine; using float32")
            self.dtype = torch.float32
        self.exact = exact.at(FLOAT32)
        self.reference = Reference(exact)
        self.limits = batch_limits(config, device)
        self.strategy, self.scorer = build_scorer(choose_strategy(config.strategy, folder), self.reading)
        self._exact_strategy, self._exact_scorer = self.strategy, self.scorer
        if self.model.is_low_precision:
            self._exact_strategy, self._exact_scorer = build_scorer(self.strategy, self.exact)

    @property
    def model(self) -> Network:
        """The model, in the precision that was chosen."""
        return self.reading.model

    @property
    def prompt(self) -> Prompt:
        """What stands around each ticket."""
        return self.reading.prompt

    def certifier(self) -> Certifier | None:
        """A certifier, where precision is low and certification is wanted."""
        if not (self._config.certify and self.model.is_low_precision):
            return None

        def exact(tickets: Sequence[TokenIds]) -> FloatArray:
            return score_plan(self._exact_scorer, self._exact_strategy, self.limits, tickets)

        return Certifier(exact, self._config.seed)

    def labeller(self, tally: Tally, certifier: Certifier | None, cache: LabelCache | None) -> Labeller:
        """A labeller that counts into `tally` and looks texts up in `cache`."""
        parts = (self.encoder, self.strategy, self.scorer, self.reference, self.limits, tally)
        return Labeller(*parts, certifier=certifier, cache=cache)


def batch_limits(config: ScoringConfig, device: str) -> Limits:
    """The limits that were asked for, or those that suit the device."""
    suits = AUTO_BATCH_TOKENS.get(device, AUTO_BATCH_TOKENS_ELSEWHERE)
    return Limits(config.batch_tickets, config.max_batch_tokens or suits)


def choose_strategy(name: str, folder: ModelFolder) -> Strategy:
    """`auto` lays tickets end to end; the prefix is shared where there is one, in causal models."""
    automatic = "packed+prefix" if folder.kind == "causal" else "packed"
    return STRATEGIES[automatic if name == "auto" else name]


def choose_dtype(name: str, device: str) -> torch.dtype:
    """`auto` is float32, in which labels are exact.

    Raises:
        UsageError: float16 on a CPU, which has no fast products in it.
    """
    if name == "float16" and device == "cpu":
        raise UsageError("--dtype float16 needs a GPU; on a CPU use bfloat16 (or auto)")
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(name, torch.float32)
