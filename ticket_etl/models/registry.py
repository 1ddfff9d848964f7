"""The models this program knows by name: one table. Others work too, by hub name or as a folder."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """What can be said of a model before it is here."""

    name: str
    source: str
    kind: str
    size_bytes: int
    licence: str
    revision: str | None
    """The commit that `pull` takes unless told otherwise; None for an embedded model."""
    quality: str = ""
    """Accuracy on public data sets, as `ticket-etl evaluate` and `benchmarks/quality.py` measured it; else empty."""


KNOWN_MODELS = {
    model.name: model
    for model in (
        KnownModel(
            "smollm2",
            "embedded",
            "causal",
            538_090_408,
            "Apache-2.0",
            None,
            "CFPB .15 zero-shot, .80 fitted",
        ),
        KnownModel(
            "minilm",
            "embedded",
            "encoder",
            90_868_376,
            "Apache-2.0",
            None,
            "CFPB .72 zero-shot, .81 fitted",
        ),
        KnownModel(
            "Qwen/Qwen2.5-0.5B-Instruct",
            "hub",
            "causal",
            988_097_824,
            "Apache-2.0",
            "7ae557604adf67be50417f59c2c2f167def9a775",
        ),
    )
}
