"""The models that come with the installation, as PyPI packages, by name: one table."""

from pathlib import Path
from typing import Protocol

from ticket_etl.models import minilm, smollm2
from ticket_etl.models.folder import ModelFolder


class EmbeddedModel(Protocol):
    """What a module about one such model offers."""

    def find(self) -> ModelFolder:
        """Return the model, checked and ready to load, or raise ModelError with the command that installs it."""

    def installed_path(self) -> Path | None:
        """Return the folder if there is one, without checking it."""


DEFAULT = smollm2.NAME
EMBEDDED_MODELS: dict[str, EmbeddedModel] = {smollm2.NAME: smollm2, minilm.NAME: minilm}
