"""The cheap checks of every scoring command, made before any data is read and without loading torch."""

from ticket_etl.config import ScoringConfig
from ticket_etl.errors import UsageError
from ticket_etl.labels import LabelSet, load_labels
from ticket_etl.models import ModelFolder, default_model, find_model
from ticket_etl.strategies import STRATEGIES


def check_request(config: ScoringConfig) -> tuple[LabelSet, ModelFolder]:
    """Read the labels and find the model.

    Raises:
        UsageError: the label file or the strategy's name is wrong.
        ModelError: the model is not on this machine.
    """
    if config.strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {config.strategy!r}; known are {', '.join(STRATEGIES)}")
    labels = load_labels(config.labels)
    return labels, find_model(config.model or default_model())
