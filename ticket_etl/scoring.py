"""What every scoring command needs: labels, model, encoder and scorer, made from a configuration."""

import torch

from ticket_etl.cache import LabelCache
from ticket_etl.config import ScoringConfig
from ticket_etl.labeller import Labeller
from ticket_etl.labels import LabelSet
from ticket_etl.language_model import LanguageModel
from ticket_etl.machine import choose_device, set_threads
from ticket_etl.models import ModelFolder
from ticket_etl.models.loading import load_model
from ticket_etl.plan import Limits
from ticket_etl.prompt import TicketEncoder
from ticket_etl.scorers import Reference, build_scorer
from ticket_etl.strategies import STRATEGIES
from ticket_etl.tally import Tally


class Scoring:
    """A loaded model with everything around it.

    Raises:
        ModelError: the model cannot be loaded.
        UsageError: the device is missing, or the labels do not suit the model.
    """

    def __init__(self, config: ScoringConfig, labels: LabelSet, folder: ModelFolder) -> None:
        self.labels = labels
        self.folder = folder
        self.threads = set_threads()
        device = choose_device(config.device)
        model, tokenizer = load_model(folder, device=device, dtype=choose_dtype(config.dtype))
        self.encoder = TicketEncoder(
            tokenizer,
            labels,
            max_ticket_tokens=config.max_ticket_tokens,
            context_tokens=getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None),
        )
        self.model = LanguageModel(model, self.encoder.prompt.labels)
        self.reference = Reference(self.model, self.encoder.prompt)
        self.strategy, self.scorer = build_scorer(STRATEGIES[config.strategy], self.model, self.encoder.prompt)
        self.limits = Limits(config.batch_tickets, config.max_batch_tokens)

    def labeller(self, tally: Tally, cache: LabelCache | None) -> Labeller:
        """A labeller that counts into `tally` and looks texts up in `cache`."""
        return Labeller(self.encoder, self.strategy, self.scorer, self.reference, self.limits, tally, cache)


def choose_dtype(name: str) -> torch.dtype:
    """`auto` is float32, in which labels are exact."""
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(name, torch.float32)
