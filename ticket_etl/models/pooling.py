"""How an encoder's token vectors become one vector a text, as sentence-transformers wrote it beside the model.

    modules.json                 Transformer, Pooling, Normalize (the last one or not)
    1_Pooling/config.json        mean of all tokens, or the first one ([CLS])
    sentence_bert_config.json    most tokens of a text, lower case or not
    config.json                  how many positions there are, and where they begin

Other modules and other poolings are refused: to leave one out would give other vectors without a word. Prompts that
`config_sentence_transformers.json` may name ("query: " and "passage: " of E5 models) are not put before the texts;
tickets and label descriptions are both read as they are.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.models.folder import MODULE_CONFIGS, ModelFolder, parse_json, read_json

_MODULES = ("Transformer", "Pooling", "Normalize")
_OLDER_KEYS = {  # up to sentence-transformers 5: one switch for each pooling instead of `pooling_mode`
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_POSITIONS_AFTER_PADDING = {
    "camembert", "data2vec-text", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip


@dataclass(frozen=True)
class Pooling:
    """What it takes, beside the weights, to make the vectors that an encoder was trained to make."""

    mode: str
    """`mean`: over all tokens of the text, special ones included; `cls`: the first token's vector."""
    normalize: bool
    """Whether each vector is divided by its L2 norm."""
    max_seq_length: int
    """Most tokens of a text, special ones included; never more than the model has positions."""
    lower_case: bool
    """Whether a text is lower-cased before it goes to the tokenizer, whatever that does itself."""
    first_position: int
    """Position id of the first token: 0, but `pad_token_id + 1` in RoBERTa and its kin."""

    def __str__(self) -> str:
        return f"{self.mode}, normalised" if self.normalize else self.mode


def read_pooling(folder: ModelFolder) -> Pooling:
    """Return the pooling of an encoder; raise ModelError, in one line, for one that is not supported here.

    A plain encoder without `modules.json` is pooled by the mean and normalised, as most sentence encoders are.
    """
    return pooling_in(folder.path, folder.name)


def pooling_in(path: Path, name: str) -> Pooling:
    """Do the same for a folder that is not yet known to hold a usable model, called `name` in errors."""
    modules = _read_modules(path, name)
    config, text = read_json(path / "config.json"), _text_settings(path)
    first_position = _first_position(config)
    return Pooling(
        mode=_read_mode(path, name, modules["Pooling"]) if modules else "mean",
        normalize="Normalize" in modules or not modules,
        max_seq_length=_max_seq_length(path, name, config, text, first_position),
        lower_case=bool(text.get("do_lower_case")),
        first_position=first_position,
    )


def _read_modules(path: Path, name: str) -> dict[str, str]:
    """Return the folders of the modules by kind: {"Transformer": "", "Pooling": "1_Pooling"}; without a list, {}."""
    if not (path / "modules.json").exists():
        return {}
    listed = parse_json(path / "modules.json")
    modules: dict[str, str] = {}
    for entry in listed if isinstance(listed, list) else []:
        module = entry if isinstance(entry, dict) else {}
        library, _, kind = str(module.get("type")).rpartition(".")
        if not library.startswith("sentence_transformers.") or kind not in _MODULES or kind in modules:
            raise ModelError(
                f"{name} has a module {module.get('type')} in modules.json; only one Transformer, one Pooling and "
                "Normalize are supported: choose another encoder"
            )
        modules[kind] = str(module.get("path") or "")
    if tuple(modules) not in {_MODULES, _MODULES[:2]} or modules["Transformer"]:
        raise ModelError(
            f"modules.json of {name} is not a Transformer in the folder itself, then Pooling, then perhaps Normalize; "
            "choose another encoder"
        )
    return modules


def _read_mode(path: Path, name: str, folder: str) -> str:
    config_name = f"{folder}/config.json"
    if "/" in folder or not fnmatch.fnmatchcase(config_name, MODULE_CONFIGS):  # only those are hashed and downloaded
        raise ModelError(
            f"{name} has its pooling in {folder!r} instead of 1_Pooling; save it again with save_pretrained"
        )
    config = read_json(path / config_name)
    stated = config.get("pooling_mode") or [mode for key, mode in _OLDER_KEYS.items() if config.get(key)] or "mean"
    modes = [str(mode) for mode in stated] if isinstance(stated, list) else [str(stated)]
    if modes not in (["mean"], ["cls"]):
        raise ModelError(
            f"{name} pools by {' and '.join(modes)}; only mean and cls are supported: choose another encoder"
        )
    return modes[0]


def _text_settings(path: Path) -> dict[str, object]:
    """Return `sentence_bert_config.json`, which older releases named after the model: `sentence_xlnet_config.json`."""
    files = sorted(path.glob("sentence_*_config.json"))
    return read_json(files[0]) if files else {}


def _first_position(config: Mapping[str, object]) -> int:
    padding = config.get("pad_token_id", 1)  # RoBERTa's own default
    counts_from_padding = config.get("model_type") in _POSITIONS_AFTER_PADDING
    return padding + 1 if counts_from_padding and isinstance(padding, int) else 0


def _max_seq_length(
    path: Path, name: str, config: Mapping[str, object], text: Mapping[str, object], first_position: int
) -> int:
    """Return what the files state, capped by the positions: 512 stated, 514 positions from 2 on -> 512."""
    tokenizer = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
    stated = text.get("max_seq_length") or tokenizer.get("model_max_length")
    positions = config.get("max_position_embeddings")
    lengths = [stated] if isinstance(stated, int) else []
    lengths += [positions - first_position] if isinstance(positions, int) and positions > 0 else []
    if not lengths or min(lengths) <= 2:
        raise ModelError(
            f"{name} states no usable max_position_embeddings in config.json or max_seq_length; choose another encoder"
        )
    return min(lengths)
