"""Models on this machine: finding, fetching and describing them, without a forward pass.

Importing this package is cheap: torch and transformers come in only where a model is converted, and in
`ticket_etl.models.loading`, which callers import on their own.
"""

from ticket_etl.models.catalog import (
    ModelInfo,
    ModelListing,
    find_model,
    list_models,
    model_info,
    pull_model,
)
from ticket_etl.models.folder import ModelFolder
from ticket_etl.models.places import cache_dir, user_config_path
from ticket_etl.models.settings import default_model

__all__ = [
    "ModelFolder",
    "ModelInfo",
    "ModelListing",
    "cache_dir",
    "default_model",
    "find_model",
    "list_models",
    "model_info",
    "pull_model",
    "user_config_path",
]
