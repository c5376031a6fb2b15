"""The manifest of a corpus."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from poolbench.corpora.partition import PARTITION_VERSION
from poolbench.errors import CorpusError

MANIFEST_NAME = "manifest.json"


class CorpusManifest(BaseModel):
    """How a corpus was made; lies beside its concept folders.

    Attributes:
        revision: Name of this state of the corpus; enters the artifact keys.
        tokenizer: Tokenizer that measured `token_count`, or `words` for words and punctuation.
        window: Smallest and largest number of tokens asked for.
        partition_version: The document partition of its splits; 0 for splits made elsewhere.
        inferred_documents: Whether `doc_id` was inferred from shared 8-grams.
        recipe: The command or function that made it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    revision: str
    tokenizer: str
    window: tuple[int, int]
    partition_version: int = PARTITION_VERSION
    inferred_documents: bool = False
    recipe: str = ""


def read_manifest(folder: Path) -> CorpusManifest | None:
    """Return the manifest of a corpus folder, None without one. Raise CorpusError if it cannot be read."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        return CorpusManifest.model_validate_json(path.read_text("utf-8"))
    except ValidationError as error:
        raise CorpusError(f"{path}: {error.errors()[0]['msg']}") from None
