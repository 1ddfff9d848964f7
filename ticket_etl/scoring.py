"""What every scoring command needs: labels, model, encoder and scorer, made from a configuration."""

import dataclasses
import datetime
import logging
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from ticket_etl import __version__
from ticket_etl.arrays import FloatArray, TokenIds
from ticket_etl.cache import LabelCache
from ticket_etl.certify import Certifier
from ticket_etl.config import AUTO_BATCH_TOKENS, AUTO_BATCH_TOKENS_ELSEWHERE, ScoringConfig
from ticket_etl.drift_profile import DriftProfile, keep_profile, load_profile
from ticket_etl.errors import UsageError
from ticket_etl.fingerprint import fingerprint_text
from ticket_etl.head import Head
from ticket_etl.kept import Key
from ticket_etl.kernels import BFLOAT16, FLOAT32
from ticket_etl.labeller import Labeller, is_blank
from ticket_etl.labels import LabelSet
from ticket_etl.machine import choose_device, processor, set_threads
from ticket_etl.models import ModelFolder
from ticket_etl.network import Network
from ticket_etl.opening import open_model
from ticket_etl.plan import Limits
from ticket_etl.prompt import Prompt
from ticket_etl.readings import Reading
from ticket_etl.scorers import Reference, build_scorer, check_scorer, score_plan
from ticket_etl.strategies import STRATEGIES
from ticket_etl.tally import Tally
from ticket_etl.tuning import Tuning, defaults, tune

log = logging.getLogger("ticket_etl")

_CHECKED_AMONG = 64
_CHECKED_AT = (0.25, 0.5, 0.75)
"""Of the first texts, the ones by length on which the scorer is held against `per-item`."""


class Scoring:
    """A loaded model with everything around it; what is `auto` in the configuration is settled by `tuning`.

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
        self._features = features
        device = choose_device(config.device)
        check_dtype(config.dtype, device)
        self.tuning: Tuning = defaults(config, device, folder.kind)
        self._profile: DriftProfile | None = None
        # On a CPU one float32 model does it all: its matrix products can be switched to bfloat16 and back.
        loaded = torch.float32 if device == "cpu" else _DTYPES[self.tuning.dtype]
        opened = open_model(config, labels, folder, device, loaded, self._settle)
        self.opened = opened
        self.encoder = opened.encoder
        self.dtype = _DTYPES[self.tuning.dtype]
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
        self.limits = Limits(config.batch_tickets, self.tuning.batch_tokens)
        self.strategy, self.scorer = build_scorer(STRATEGIES[self.tuning.strategy], self.reading)
        self._exact_strategy, self._exact_scorer = self.strategy, self.scorer
        if self.model.is_low_precision:
            self._exact_strategy, self._exact_scorer = build_scorer(self.strategy, self.exact)

    @property
    def model(self) -> Network:
        """The model, in the precision that was chosen."""
        return self.reading.model

    @property
    def dtype_name(self) -> str:
        """The precision that was chosen, as the user names it."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def prompt(self) -> Prompt:
        """What stands around each ticket."""
        return self.reading.prompt

    @property
    def profile(self) -> DriftProfile | None:
        """What earlier runs know of low precision's drift, where that matters."""
        return self._profile if self._certifies else None

    def certifier(self) -> Certifier | None:
        """A certifier, where precision is low and certification is wanted."""
        return Certifier(self.exact_scores, self._config.seed, self.profile) if self._certifies else None

    def exact_scores(self, tickets: Sequence[TokenIds]) -> FloatArray:
        """Log-probabilities in float32: shape (tickets, labels)."""
        return score_plan(self._exact_scorer, self._exact_strategy, self.limits, tickets)

    def labeller(self, tally: Tally, certifier: Certifier | None, cache: LabelCache | None) -> Labeller:
        """A labeller that counts into `tally` and looks texts up in `cache`."""
        parts = (self.encoder, self.strategy, self.scorer, self.reference, self.limits, tally)
        return Labeller(*parts, certifier=certifier, cache=cache)

    def check_on(self, texts: Sequence[str | None]) -> None:
        """Hold the float32 scorer against `per-item` on three of a file's first texts; what fails gives way.

        Which three depends on the texts alone, so that a resumed run comes to the same strategy.
        """
        distinct = list(dict.fromkeys(text for text in texts if not is_blank(text)))[:_CHECKED_AMONG]
        by_length = sorted((ticket.ids for ticket in self.encoder.encode([t for t in distinct if t])), key=len)
        places = sorted({int(share * len(by_length)) for share in _CHECKED_AT}) if by_length else []
        tickets = [by_length[place] for place in places]
        if not tickets:
            return
        checked = check_scorer(
            self._exact_strategy, self._exact_scorer, self.exact, self.reference, self.limits, tickets
        )
        if checked != (self._exact_strategy, self._exact_scorer):
            self._exact_strategy, self._exact_scorer = checked
            self.strategy, self.scorer = checked
            if self.model.is_low_precision:
                self.strategy, self.scorer = build_scorer(self._exact_strategy, self.reading)

    def keep_profile(self, certifier: Certifier) -> None:
        """Keep for later runs what a finished one found out of the drift."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        profile = certifier.count.profile(certifier.before, today)
        if profile is not None and profile != certifier.before:
            keep_profile(self._profile_key(self.prompt, str(self.dtype)), profile)

    @property
    def _certifies(self) -> bool:
        return self._config.certify and self.model.is_low_precision

    def _settle(self, model: PreTrainedModel, prompt: Prompt) -> Sequence[str]:
        """Choose what is `auto`, and say in which precisions weights are to be packed."""
        device, config = model.device.type, self._config
        if self._features and config.dtype == "auto":
            config = dataclasses.replace(config, dtype=FLOAT32)  # there is nothing to certify in features
        dtype = _DTYPES[BFLOAT16 if config.dtype == "auto" else config.dtype]
        if config.certify and not self._features and dtype != torch.float32:
            self._profile = load_profile(self._profile_key(prompt, str(dtype)))
        self.tuning = tune(
            config,
            self.folder,
            model,
            prompt,
            reads_labels=self.head is None and not self._features,
            rescored_share=None if self._profile is None else self._profile.rescored_share,
        )
        return (FLOAT32, BFLOAT16) if device == "cpu" and self.tuning.dtype == BFLOAT16 else (FLOAT32,)

    def _profile_key(self, prompt: Prompt, dtype: str) -> Key:
        """What low precision's drift depends on."""
        device = choose_device(self._config.device)
        machine = processor() if device != "cuda" else {"name": torch.cuda.get_device_name()}
        return {
            "model": self.folder.revision,
            "dtype": dtype,
            "device": device,
            "processor": machine,
            "prompt": prompt.fingerprint,
            "labels": fingerprint_text([dataclasses.asdict(self.labels)["labels"], prompt.sequences]),
            "head": None if self.head is None else self.head.fingerprint,
            "calibrated": self._config.calibrate,
            "version": __version__,
        }


def batch_limits(config: ScoringConfig, device: str) -> Limits:
    """The limits that were asked for, or those that suit the device, as far as one can say without measuring."""
    suits = AUTO_BATCH_TOKENS.get(device, AUTO_BATCH_TOKENS_ELSEWHERE)
    return Limits(config.batch_tickets, config.max_batch_tokens or suits)


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_dtype(name: str, device: str) -> None:
    """Refuse what a device cannot do.

    Raises:
        UsageError: float16 on a CPU, which has no fast products in it.
    """
    if name == "float16" and device == "cpu":
        raise UsageError("--dtype float16 needs a GPU; on a CPU use bfloat16 (or auto)")
