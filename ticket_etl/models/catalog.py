"""Looks models up by name, fetches them, and describes what is here: the package's whole outside."""

from dataclasses import dataclass
from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.models import installed
from ticket_etl.models.embedded import DEFAULT, EMBEDDED_MODELS
from ticket_etl.models.folder import DamagedError, ModelFolder, read_json, read_manifest
from ticket_etl.models.kinds import kind_of
from ticket_etl.models.local import find_local
from ticket_etl.models.pooling import read_pooling
from ticket_etl.models.registry import KNOWN_MODELS, KnownModel
from ticket_etl.models.settings import default_model, set_default_model
from ticket_etl.models.weights import summarize_weights

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


@dataclass(frozen=True)
class ModelListing:
    """One line of `ticket-etl model list`."""

    name: str
    kind: str
    source: str
    size_bytes: int
    licence: str | None
    quality: str
    """What is known of its accuracy, in words; empty if nothing."""
    installed: bool
    default: bool


@dataclass(frozen=True)
class ModelInfo:
    """What `ticket-etl model info` tells of a model that is here."""

    name: str
    path: Path
    source: str
    revision: str
    licence: str | None
    kind: str
    architecture: str
    parameters: int
    size_bytes: int
    weights_dtype: str
    context_length: int | None
    """Most tokens of a text that it takes, as far as its files say."""
    pooling: str | None
    """How an encoder makes one vector of a text; None for a causal model."""
    chat_template: bool


def find_model(name: str | None) -> ModelFolder:
    """Return the model `name` (None: the embedded default), ready to load, without any download.

    A name is an embedded model's, a folder's, or a hub model's that was pulled before, in that order; `org/model@abc`
    asks for one revision. Anything else is a ModelError with the way out.
    """
    name = DEFAULT if name is None else name
    if embedded := EMBEDDED_MODELS.get(name):
        return embedded.find()
    if _is_folder(name):
        return find_local(name)
    if hub_name := installed.split_hub_name(name):
        return installed.find_installed(*hub_name)
    if name[:1] in {"/", ".", "~"}:
        raise ModelError(f"there is no folder {name}; check the path of the model")
    raise ModelError(
        f"there is no model {name!r}: neither a folder nor one of {', '.join(KNOWN_MODELS)}; "
        "see ticket-etl model list, or name a hub model as organisation/model"
    )


def pull_model(name: str, *, revision: str | None = None, make_default: bool = False) -> ModelFolder:
    """Bring a model here: make an embedded one ready, download any other at one commit; `make_default` records it."""
    if embedded := EMBEDDED_MODELS.get(name):
        found = embedded.find()
    elif hub_name := installed.split_hub_name(name):
        from ticket_etl.models import hub

        name, named_revision = hub_name
        found = hub.pull(name, revision or named_revision)
    else:
        names = ", ".join(EMBEDDED_MODELS)
        raise ModelError(f"{name!r} cannot be pulled; name {names} or a hub model as organisation/model")
    if make_default:
        set_default_model(name)
    return found


def list_models() -> list[ModelListing]:
    """Return the models known by name and those pulled before, without checking their contents."""
    default = default_model()
    others = [name for name in dict.fromkeys(installed.installed_names()) if name not in KNOWN_MODELS]
    listings = [_list_known(model, default) for model in KNOWN_MODELS.values()]
    return listings + [_list_installed(name, default) for name in others]


def model_info(name: str | None) -> ModelInfo:
    """Describe a model that is here; one that isn't is the same ModelError as for `find_model`."""
    model = find_model(name)
    config, weights = read_json(model.path / "config.json"), summarize_weights(model.path)
    architectures = config.get("architectures")
    lengths = [value for key in _CONTEXT_KEYS if isinstance(value := config.get(key), int)]
    pooling = read_pooling(model) if model.kind == "encoder" else None
    return ModelInfo(
        name=model.name,
        path=model.path,
        source=model.source,
        revision=model.revision,
        licence=model.licence,
        kind=model.kind,
        architecture=str(architectures[0]) if isinstance(architectures, list) and architectures else "unnamed",
        parameters=weights.parameters,
        size_bytes=weights.size_bytes,
        weights_dtype=weights.dtype,
        context_length=pooling.max_seq_length if pooling else lengths[0] if lengths else None,
        pooling=str(pooling) if pooling else None,
        chat_template=_has_chat_template(model.path),
    )


def _list_known(model: KnownModel, default: str) -> ModelListing:
    embedded = EMBEDDED_MODELS.get(model.name)
    path = embedded.installed_path() if embedded else installed.installed_path(model.name)
    return ModelListing(
        model.name,
        model.kind,
        model.source,
        model.size_bytes,
        model.licence,
        model.quality,
        installed=path is not None,
        default=model.name == default,
    )


def _list_installed(name: str, default: str) -> ModelListing:
    path = installed.installed_path(name)
    assert path is not None
    try:
        kind, size_bytes = kind_of(read_json(path / "config.json")), summarize_weights(path).size_bytes
        licence, whole = read_manifest(path).licence, True
    except (ModelError, DamagedError):
        kind, size_bytes, licence, whole = "?", 0, None, False
    return ModelListing(name, kind, "hub", size_bytes, licence, "", installed=whole, default=name == default)


def _has_chat_template(path: Path) -> bool:
    if any((path / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    settings = path / "tokenizer_config.json"
    return settings.is_file() and bool(read_json(settings).get("chat_template"))


def _is_folder(name: str) -> bool:
    try:
        return bool(name) and Path(name).expanduser().is_dir()
    except (RuntimeError, OSError, ValueError):  # "~" without a home; a name too long; a null character
        return False
