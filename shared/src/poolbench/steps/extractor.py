"""Steps of the extractor: passages to pooled vectors and kept states of a Hugging Face decoder."""

from typing import Any, Literal

from pydantic import Field

from poolbench.config.base import StrictModel
from poolbench.config.models import EMBEDDING_INDEX
from poolbench.contracts.bounds import DirectionIds, Flag, Layer, ModelName, Real, Revision, Seed, Strengths, Whole
from poolbench.contracts.work import Shape, Sized, measures
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps.base import (
    MAX_STRATEGIES,
    KeyParams,
    Keys,
    ModelParams,
    Output,
    SinkParams,
    Step,
    StrategyParam,
    given,
    part_params,
)
from poolbench.steps.roles import Cell, Named, OfConcept, OfLayer, Role, Single

PASSAGES = Role("passages", Single)
ANNOTATIONS = Role("annotations", Single)
FREQUENCIES = Role("frequencies", Single)
CALIBRATION = Role("calibration", Single)
CONCEPT_PASSAGES = Role("passages/{concept}", OfConcept)
STATES = Role("states/{layer}", OfLayer)
VECTORS = Role("{strategy}/{layer}", Cell)
AUTOENCODER = Role("sae/{name}", Named)
FEATURES = Role("features/{name}", Named)
RANDOM_FEATURES = Role("random/{name}", Named)
COORDINATES = Role("coordinates", Single)
DIRECTIONS = Role("directions", Single)
DAMAGE = Role("damage", Single)
LENS = Role("lens", Single)
#: Id of the direction that a vector trained by gradient has.
TRAINED = "trained"


class ReadingParams(ModelParams):
    """The model and how it reads its input.

    Attributes:
        include_bos: Whether a BOS counts as a real token.
        max_length: Longer passages fail, in tokens, as do those longer than the model's window.
    """

    include_bos: Flag = False
    max_length: Whole | None = Field(default=None, gt=0, le=10_000_000)


class ChangeParams(StrictModel):
    """A change of a model's weights.

    Attributes:
        source: Folder of a fine-tune of the model: a whole checkpoint, or a LoRA adapter.
        revision: Its `change_revision`.
        random_seed: None applies the change. With a seed, rows and columns of the change of every matrix are first
            permuted and their signs drawn at random, which keeps its singular values, and hence its norm.
    """

    source: ModelName
    revision: Revision
    random_seed: Seed | None = None


class RandomWeights(StrictModel):
    """Weights as they are before any training, embeddings included, in place of those of the model.

    Attributes:
        seed: Seed of the weights.
    """

    seed: Seed


class CalibrateParams(ReadingParams):
    """Parameters of `extractor.calibrate`."""

    layers: list[Layer] = Field(min_length=1, max_length=1000)


class ExtractParams(CalibrateParams, SinkParams):
    """Parameters of `extractor.extract`.

    Attributes:
        change: What the model's weights are changed by before it reads.
        erased_layer: Layer whose states lose their projection on the directions of the task, at every position.
    """

    change: ChangeParams | RandomWeights | None = None
    erased_layer: Layer | None = None
    strategies: list[StrategyParam] = Field(default_factory=list, max_length=MAX_STRATEGIES)
    keep_activations: Flag = False


class FeatureParams(ReadingParams, SinkParams):
    """Parameters of `extractor.features`.

    Attributes:
        layer: The layer whose states the autoencoders read.
        seed: Draws the random directions that stand beside an autoencoder.
    """

    layer: Layer
    seed: Seed = 0


class RecoveredParams(FeatureParams):
    """Parameters of `extractor.recovered`.

    Attributes:
        num_bootstrap: Resamples of the groups of texts (column `group` of the passages), or of the texts.
        seed: Draws the random directions that stand beside an autoencoder, and the resamples.
    """

    num_bootstrap: Whole = Field(default=1000, ge=0, le=100_000)


class DamageParams(ReadingParams):
    """Parameters of `extractor.damage`.

    Attributes:
        layer: Decoder block whose output is steered, at every position of a text.
        direction_ids: Rows of the table of directions.
        strengths: Strengths in units of `alpha_unit`; 0 is always measured.
        alpha_unit: `residual_norm` (the calibration norm of the layer) or `absolute` (1).
    """

    layer: Whole = Field(ge=0, lt=1_000)
    direction_ids: DirectionIds = ("C1",)
    strengths: Strengths = ()
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"


class TrainedParams(ReadingParams):
    """Parameters of `extractor.trained`.

    Attributes:
        layer: Decoder block whose output the vector is added to, at every position of a text.
        num_steps: Steps of Adam.
        num_pairs: Pairs of a positive and a negative passage in each step.
        learning_rate: Most that Adam moves the vector in a step, in norms of the states.
        beta: Weight of the log-likelihood ratios in the loss.
        seed: Order of the pairs.
    """

    layer: Whole = Field(ge=0, lt=1_000)
    num_steps: Whole = Field(default=50, gt=0, le=100_000)
    num_pairs: Whole = Field(default=2, gt=0, le=1_000)
    learning_rate: Real = Field(default=0.005, gt=0, le=10)
    beta: Real = Field(default=0.1, gt=0, le=100)
    seed: Seed = 0


class ImportedParams(SinkParams):
    """What vectors of imported activations depend on: the import, and the strategies."""

    model: ModelName  # `import:<name>`
    model_revision: str | None = None  # hash of the import
    dtype: str | None = None  # A note of the import
    include_bos: Flag = False  # whether a BOS counts as a real token
    strategies: list[StrategyParam] = Field(default_factory=list, max_length=MAX_STRATEGIES)  # strategies


#: Parameters that vectors and states of every strategy and layer depend on.
_READING = {*ReadingParams.model_fields, *SinkParams.model_fields, "change", "erased_layer"}


def _reading(params: ExtractParams | ImportedParams) -> dict[str, Any]:
    reading_params = {name: value for name, value in given(params).items() if name in _READING}
    if reading_params.get("change"):  # a change is its content, wherever the folder is
        reading_params["change"] = {name: value for name, value in reading_params["change"].items() if name != "source"}
    return reading_params


def _of_layer(layer: int) -> dict[str, Any]:
    """Return a layer as it enters keys. Version 2 of the embedding is what the first block reads, with positions."""
    return {"layer": layer, "embedding": 2} if layer == EMBEDDING_INDEX else {"layer": layer}


def _passages(_: Any, __: Any, inputs: Keys) -> Keys:
    return {PASSAGES(): inputs[PASSAGES()]}


def _read_inputs(_: Any, __: Any, inputs: Keys) -> Keys:
    """Return what all states depend on: the passages, and directions that are erased."""
    return {role: inputs[role] for role in (PASSAGES(), DIRECTIONS()) if role in inputs}


def _vectors_params(params: ExtractParams | ImportedParams, at: Cell) -> dict[str, Any]:
    params_by_strategy = {entry.id: entry.params for entry in params.strategies}
    identity = STRATEGIES.get(at.strategy).identity(params_by_strategy.get(at.strategy))
    layer = {"layer": at.layer} if isinstance(params, ImportedParams) else _of_layer(at.layer)
    return {**_reading(params), "strategy": identity, **layer}


def _vectors_inputs(_: ExtractParams, at: Cell, inputs: Keys) -> Keys:
    """Return the inputs of a strategy's vectors: annotations and counts only if the strategy reads them.

    Another spaCy pipeline, or another concept in the run, then recomputes only what depends on it.
    """
    strategy = STRATEGIES.get(at.strategy)
    read = []
    if strategy.reads_annotations:
        read.append(ANNOTATIONS())
    if strategy.reads_counts:
        read.append(FREQUENCIES())
    return {**_read_inputs(_, at, inputs), **{role: inputs[role] for role in read}}


def _imported_inputs(_: ImportedParams, at: Cell, inputs: Keys) -> Keys:
    return {"states": inputs[STATES(at.layer)]}


def _states_shape(sized: Sized, _: OfLayer) -> Shape:
    """Return the size of kept states: a vector for each token, in the model's dtype."""
    number_bytes = 2 if sized.params.dtype in ("float16", "bfloat16") else 4
    return Shape(sized.rows, row_bytes=sized.passage_tokens * sized.width * number_bytes)


def vectors_shape(sized: Sized, _: Cell) -> Shape:
    """Return the size of pooled vectors: one vector for each passage."""
    return Shape(sized.rows, sized.width)


def _extract_work(sized: Sized) -> tuple[float, str]:
    needs = {need for strategy in sized.params.strategies for need in STRATEGIES.get(strategy.id).needs}
    backward = " with gradients" if "gradient" in needs else ""
    changed = " changed" if sized.params.change else ""
    return sized.inputs[PASSAGES()].rows, sized.params.variant + backward + changed


EXTRACT = Step(
    "extractor.extract",
    2,
    ExtractParams,
    inputs=(PASSAGES, ANNOTATIONS, FREQUENCIES, DIRECTIONS),
    outputs=(
        Output(
            STATES,
            lambda params, at: {**_reading(params), **_of_layer(at.layer)},
            _read_inputs,
            kind="extractor.states",
            version=4,
            shape=_states_shape,
        ),
        Output(VECTORS, _vectors_params, _vectors_inputs, shape=vectors_shape),
    ),
    summary="all strategies and layers of one concept and split in one pass over the model; states if they are kept",
    label="extract and pool",
    unit="passages",
    work=_extract_work,
)
#: Vectors of imported activations depend on their states alone. `pooler.pool` makes them; no service has this step.
IMPORTED_VECTORS = Step(
    "import.vectors",
    EXTRACT.version,
    ImportedParams,
    inputs=(STATES,),
    outputs=(Output(VECTORS, _vectors_params, _imported_inputs, kind=EXTRACT.kind),),
    summary="vectors pooled from imported states",
    keyed_by=EXTRACT.kind,
)
COUNT = Step(
    "extractor.count",
    1,
    ReadingParams,
    inputs=(CONCEPT_PASSAGES,),
    outputs=(Output(FREQUENCIES),),
    summary="how often each token occurs in the train passages of the run; only the tokenizer is loaded",
    label="count tokens",
    unit="passages",
    work=lambda of: (sum(of.inputs[role].rows for role in of.task.inputs), of.params.model),
)
CALIBRATE = Step(
    "extractor.calibrate",
    2,
    CalibrateParams,
    inputs=(PASSAGES,),
    outputs=(Output(CALIBRATION),),
    summary="median residual norm of each layer on the calibration texts",
    label="calibrate norms",
    unit="passages",
    work=lambda of: (of.inputs[PASSAGES()].rows, of.params.variant),
)


def _feature_params(part: str, *unread: str) -> KeyParams:
    """Return the rule of features: all parameters but those that are not read, and which part of the step they are."""
    rule = part_params(part, *unread)
    return lambda params, at: {**rule(params, at), **_of_layer(params.layer)}


def _feature_inputs(_: FeatureParams, at: Named, inputs: Keys) -> Keys:
    """Return the passages and the autoencoder. Its name in a task does not change the key."""
    return {PASSAGES(): inputs[PASSAGES()], "sae": inputs[AUTOENCODER(*at)]}


def _features_shape(sized: Sized, _: Any) -> Shape:
    """Return the size of pooled features, of which some hundreds are not 0."""
    return Shape(sized.inputs[PASSAGES()].rows, row_bytes=4_000.0)


def _feature_work(sized: Sized) -> tuple[float, str]:
    num = sum(1 for _ in AUTOENCODER.among(sized.task.inputs))
    return sized.inputs[PASSAGES()].rows, f"{sized.params.variant}, {num} autoencoders"


FEATURES_OF = Step(
    "extractor.features",
    1,
    FeatureParams,
    inputs=(PASSAGES, AUTOENCODER),
    outputs=(
        Output(FEATURES, _feature_params("features", "seed"), _feature_inputs, shape=_features_shape),
        Output(RANDOM_FEATURES, _feature_params("random"), _feature_inputs, shape=_features_shape),
        Output(COORDINATES, _feature_params("coordinates", "seed"), _passages, shape=_features_shape),
    ),
    summary="features of sparse autoencoders, pooled over passages and their marked parts, in one pass over the model",
    label="read autoencoders",
    unit="passages",
    work=_feature_work,
)
RECOVERED = Step(
    "extractor.recovered",
    2,
    RecoveredParams,
    inputs=FEATURES_OF.inputs,
    outputs=(
        Output(FEATURES, _feature_params("features"), _feature_inputs, shape=measures),
        Output(RANDOM_FEATURES, _feature_params("random"), _feature_inputs, shape=measures),
        Output(COORDINATES, _feature_params("coordinates"), _passages, shape=measures),
    ),
    summary="measures of the same: what is left of the loss with reconstructions in place of states; dense features",
    label="loss recovered",
    unit="passages",
    work=_feature_work,
)


def _num_edits(sized: Sized) -> int:
    return len(sized.params.direction_ids) * len(sized.params.strengths)


STEERED_TEXTS = Step(
    "extractor.damage",
    1,
    DamageParams,
    inputs=(PASSAGES, DIRECTIONS, CALIBRATION),
    outputs=(
        Output(
            DAMAGE,
            part_params("damage"),
            shape=lambda of, _: Shape(of.inputs[PASSAGES()].rows * (1 + _num_edits(of))),
        ),
        Output(LENS, part_params("lens"), shape=lambda of, _: Shape(20 * (1 + _num_edits(of)))),
    ),
    summary="likelihood of given texts under steering, divergence from the unsteered model, and promoted tokens",
    label="damage of steering",
    unit="passages",
    work=lambda of: (of.inputs[PASSAGES()].rows * (1 + _num_edits(of)), of.params.variant),
)
TRAINED_DIRECTION = Step(
    "extractor.trained",
    1,
    TrainedParams,
    inputs=(PASSAGES,),
    outputs=(Output(DIRECTIONS, shape=lambda of, _: Shape(1, of.width)),),
    summary="a steering vector trained by gradient, under which positives are likelier and negatives less likely",
    label="train a vector",
    unit="passages",
    work=lambda of: (2 * of.params.num_steps * of.params.num_pairs, of.params.variant),
)
EXTRACTOR_STEPS = (EXTRACT, COUNT, CALIBRATE, FEATURES_OF, RECOVERED, STEERED_TEXTS, TRAINED_DIRECTION)
