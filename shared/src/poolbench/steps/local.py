"""Steps of the driver itself: passages, prompts, and imported states and autoencoders."""

from typing import Any

from poolbench.config.base import StrictModel
from poolbench.steps.base import Output, Step
from poolbench.steps.roles import Role, Single

TABLE = Role("table", Single)


class PassagesParams(StrictModel):
    """What identifies the passages of one concept and split.

    Attributes:
        concept: Concept id.
        split: Split of the corpus.
        num_train: Passages of each split that the budget asks for; so `num_test` and `num_scorer`.
        source: `planted`, `real` or `folder`.
        partition: Version of the partition of documents.
        revision: Revision of the grammar or readers, or hash of the files.
        window: Shortest and longest passage in tokens.
        seed: Seed of the corpus.
        rows: Hash of the passages, where a request carries them.
    """

    concept: str
    split: str
    num_train: int | None = None
    num_test: int | None = None
    num_scorer: int | None = None
    source: str | None = None
    partition: int | None = None
    revision: str | int | None = None
    window: list[int] | None = None
    seed: int | None = None
    rows: str | None = None


class PromptsParams(StrictModel):
    """A named set of openings with their number, or the calibration texts."""

    openings: str | None = None
    count: int | None = None
    calibration: str | None = None


class StatesParams(StrictModel):
    """What identifies the imported states of one concept, split and layer."""

    concept: str
    split: str
    bos: bool
    files: str
    layer: int


class SaeParams(StrictModel):
    """What identifies an autoencoder: the hashes of its files by name."""

    files: dict[str, Any]


PASSAGES = Step("corpus.passages", 1, PassagesParams, (), (Output(TABLE),), "passages of one concept and split")
PROMPTS = Step("corpus.prompts", 1, PromptsParams, (), (Output(TABLE),), "openings, or the calibration texts")
IMPORT_STATES = Step("import.states", 1, StatesParams, (), (Output(TABLE),), "activations that others published")
IMPORT_SAE = Step("import.sae", 1, SaeParams, (), (Output(TABLE),), "a sparse autoencoder of one layer")
LOCAL_STEPS = (PASSAGES, PROMPTS, IMPORT_STATES, IMPORT_SAE)
