"""Reads what safetensors files say of themselves, without reading the weights.

8 bytes: length of the header | header: JSON {tensor: dtype, shape, offsets} | the numbers
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.models.folder import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_LONGEST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class WeightsSummary:
    """What the weight files of one model hold."""

    parameters: int
    size_bytes: int
    dtype: str
    """The dtype of most of the numbers, such as `bfloat16`."""


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that make up the model in `folder`; raise ModelError if the set is not whole."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
        missing = [name for name in names if not (folder / name).is_file()]
        if names and not missing:
            return [folder / name for name in names]
        what = f"{missing[0]} is missing" if missing else f"{INDEX} names no files"
        raise ModelError(f"the model in {folder} is not whole: {what}; get the model again")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(
            f"the model in {folder} has pickle weights only, which can run code and are not loaded; "
            f"get its {SINGLE}, or save it with save_pretrained"
        )
    raise ModelError(f"no {SINGLE} in {folder}; get the weights in safetensors format")


def summarize_weights(folder: Path) -> WeightsSummary:
    """Count parameters and bytes of the model in `folder`; a file cut short or of another format is a ModelError."""
    files = weight_files(folder)
    numbers: Counter[str] = Counter()
    for path in files:
        numbers.update(_count_numbers(path))
    [(dtype, _)] = numbers.most_common(1) or [("none", 0)]
    return WeightsSummary(
        parameters=numbers.total(),
        size_bytes=sum(path.stat().st_size for path in files),
        dtype=_DTYPES.get(dtype, dtype.lower()),
    )


def _count_numbers(path: Path) -> Counter[str]:
    """Count the numbers of one file by dtype: a file of one [2, 3] matrix in float16 -> {"F16": 6}."""
    try:
        with path.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > _LONGEST_HEADER_BYTES:
                raise ValueError("a Git LFS pointer, not the file itself" if start == b"version " else "no header")
            header = json.loads(stream.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        end = 8 + length + max((entry["data_offsets"][1] for entry in tensors), default=0)
        if path.stat().st_size != end:
            raise ValueError(f"{path.stat().st_size} bytes instead of {end}")
        counts: Counter[str] = Counter()
        for entry in tensors:
            counts[entry["dtype"]] += math.prod(entry["shape"])
        return counts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is no whole safetensors file ({error}); get the model again") from None
