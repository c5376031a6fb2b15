"""Steps of the driver itself: passages, prompts, and imported states and autoencoders."""

from typing import Any

from poolbench.config.base import StrictModel
from poolbench.steps.base import Output, Step
from poolbench.steps.roles import Role, Single

TABLE = Role("table", Single)


class PassagesParams(StrictModel):
    """What identifies the passages of one concept and split."""

    concept: str  # concept id
    split: str  # split of the corpus
    num_train: int | None = None  # passages of each split that the budget asks for; so `num_test` and `num_scorer`
    num_test: int | None = None
    num_scorer: int | None = None
    source: str | None = None  # `planted`, `real` or `folder`
    partition: int | None = None  # version of the partition of documents
    revision: str | int | None = None  # revision of the grammar or readers, or hash of the files
    window: list[int] | None = None  # shortest and longest passage in tokens
    seed: int | None = None  # seed of the corpus
    inference: int | None = None  # version of the rule that infers documents, where a folder does not name them
    mask: str | None = None  # text in place of the concept's seed words
    rows: str | None = None  # hash of the passages, where a request carries them


class PromptsParams(StrictModel):
    """A named set of openings with their number, or the calibration texts."""

    openings: str | None = None
    count: int | None = None
    instruction: str | None = None  # what a chat model is asked for, beside each opening
    calibration: str | None = None
    half: int | None = None  # half of the openings, 0 or 1; None: all of them
    split_seed: int | None = None  # seed of the halves


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


class HalvesParams(StrictModel):
    """First halves of passages of one class, as openings."""

    label: int
    count: int  # most openings
    seed: int  # seed of the draw


class DirectionsParams(StrictModel):
    """Directions that are erased together, each from an input of its own."""

    ids: list[str]  # rows of the inputs, in order
    free_of: str | None = None  # row of another input, on which their projection is removed


class TextsParams(StrictModel):
    """What identifies imported texts of one concept, strategy, direction and set of openings."""

    concept: str
    strategy: str
    direction: str
    openings: str
    count: int
    file: str  # hash of its content


PASSAGES = Step("corpus.passages", 1, PassagesParams, (), (Output(TABLE),), "passages of one concept and split")
PROMPTS = Step("corpus.prompts", 1, PromptsParams, (), (Output(TABLE),), "openings, or the calibration texts")
IMPORT_STATES = Step("import.states", 1, StatesParams, (), (Output(TABLE),), "activations that others published")
IMPORT_SAE = Step("import.sae", 1, SaeParams, (), (Output(TABLE),), "a sparse autoencoder of one layer")
IMPORT_TEXTS = Step("import.texts", 1, TextsParams, (), (Output(TABLE),), "steered texts that others published")
HALVES = Step("corpus.halves", 2, HalvesParams, (), (Output(TABLE),), "first halves of passages, as openings")
DIRECTIONS = Step("corpus.directions", 1, DirectionsParams, (), (Output(TABLE),), "directions that are erased together")
LOCAL_STEPS = (PASSAGES, PROMPTS, HALVES, DIRECTIONS, IMPORT_STATES, IMPORT_SAE, IMPORT_TEXTS)
