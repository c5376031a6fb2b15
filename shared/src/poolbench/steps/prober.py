"""Steps of the prober: pooled vectors to probes, directions and D1."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from poolbench.config.base import StrictModel
from poolbench.contracts.bounds import Flag, Label, Name, Real, Regularisation, Seed, Whole
from poolbench.contracts.work import Shape, Sized, measures
from poolbench.directions import CONSTRUCTIONS, available_directions
from poolbench.pooling.registry import STRATEGIES
from poolbench.readouts import READOUTS
from poolbench.steps.base import (
    KeyInputs,
    KeyParams,
    Keys,
    NoParams,
    Output,
    SinkParams,
    Step,
    given,
    params_without,
    part_params,
)
from poolbench.steps.roles import Cell, Named, OfConcept, OfLayer, OfSplit, OfStrategy, Role, Single, SplitCell

PASSAGES = Role("passages/{split}", OfSplit)
VECTORS = Role("{split}/{strategy}/{layer}", SplitCell)
SAE = Role("sae/{layer}", OfLayer)
COMPONENT = Role("component/{strategy}/{layer}", Cell)
MEASURES = Role("measures/{strategy}/{layer}", Cell)
DIRECTIONS = Role("directions/{strategy}/{layer}", Cell)
SCORES = Role("scores/{strategy}/{layer}", Cell)
#: What the probing of a cell yields by name, each an artifact of its own.
PARTS = {"measures": MEASURES, "directions": DIRECTIONS, "scores": SCORES}

NESTED_MEASURES = Role("measures/{strategy}", OfStrategy)
CONCEPT_VECTORS = Role("train/{concept}", OfConcept)
COMMON_COMPONENT = Role("component", Single)
NULLS = Role("nulls", Single)
#: Directions that are erased together, by a name that the sender of the task chose, and the D1 that is left.
ERASED = Role("erased/{name}", Named)
ERASED_MEASURES = Role("measures", Single)
#: Names of what else is measured beside them: nothing erased, and all that a linear probe could read.
ERASED_NOTHING, LEACE = "nothing", "leace"


class OfShard(NamedTuple):
    """A part of the vectors of a pooling strategy at a layer. Parts may overlap."""

    strategy: str
    layer: int
    shard: str


INSTANCES = Role("instances", Single)
TASK_VECTORS = Role("vectors/{strategy}/{layer}/{shard}", OfShard)
PREDICTIONS = Role("predictions/{strategy}/{layer}", Cell)
ANSWERS = Role("answers/{strategy}/{layer}", Cell)


class OfReading(NamedTuple):
    """A way to read the preference for a word, or the position of a text, from vectors."""

    reading: Literal["published", "corrected", "direction"]


class OfWordReading(NamedTuple):
    """A way to read the preference for a word from vectors of words."""

    reading: Literal["published", "corrected"]


WORD_TEXTS = Role("words", Single)
#: Vectors of one state of the model: `before`, `after`, `random/0`, `random/1` ...
STATE_VECTORS = Role("vectors/{name}", Named)
READ_DIRECTION = Role("direction", Single)
SHIFT_MEASURES = Role("measures/{reading}", OfReading)
WORD_SHIFTS = Role("words/{reading}", OfReading)
WORD_COSINES = Role("cosines/{reading}", OfWordReading)


class OfFeatures(NamedTuple):
    """A part of the mean features of a sparse autoencoder. Parts may overlap."""

    autoencoder: str
    shard: str


class OfAutoencoder(NamedTuple):
    """A sparse autoencoder, by a name that the sender of the task chose."""

    autoencoder: str


STORIES = Role("stories", Single)
STORY_FEATURES = Role("features/{autoencoder}/{shard}", OfFeatures)
CONTRAST_MEASURES = Role("measures/{autoencoder}", OfAutoencoder)
SUBJECTS = Role("subjects/{autoencoder}", OfAutoencoder)
BY_FEATURE = Role("by_feature/{autoencoder}", OfAutoencoder)
#: Rows of `BY_FEATURE`: the strongest features of each subject, and the strongest subjects of each feature.
FEATURES_OF_SUBJECT, SUBJECTS_OF_FEATURE = 100, 20


class OfFeaturesSplit(NamedTuple):
    """The mean features of a sparse autoencoder on one split of a concept's passages."""

    autoencoder: str
    split: Literal["train", "test"]


PASSAGE_FEATURES = Role("features/{autoencoder}/{split}", OfFeaturesSplit)
SPARSE_MEASURES = Role("measures/{autoencoder}", OfAutoencoder)

#: Values of C, or seeds, of one cell.
Regularisations = Annotated[tuple[Regularisation, ...], Field(max_length=20)]
Seeds = Annotated[tuple[Seed, ...], Field(max_length=100)]


class ProbeParams(SinkParams):
    """Parameters of `prober.probe`; each of them changes the figures. Strategies that read states leave out sinks here.

    Attributes:
        concept: Concept of the passages, for messages.
        protocol: `corrected`, or `published` for the reference's own definition (which fixes folds and seeds).
        seed: Seed of folds, resamples, permutations, control words and random pairs.
        fold_seeds: Further seeds to draw folds with; `d1.auroc` is reported for each, with its spread.
        folds: Number of grouped, stratified folds.
        num_bootstrap: Resamples of the groups.
        primary_c: Inverse regularisation of `d1.auroc`.
        sensitivity_c: Further values, reported beside it.
        hidden: Units of the hidden layer of a further probe, compared with the linear one; None for no such probe.
        num_permutations: Labelings of the chance check.
        num_control_words: Control tasks behind the selectivity.
        sae_features: Features of the layer's sparse autoencoder that C5 is made of, where there is one.
        min_domain_class: Fewest passages of each class in a held-out domain.
        tolerance: Gradient norm over its value at zero weights at which a probe has converged.
    """

    concept: Label = ""
    protocol: Literal["corrected", "published"] = "corrected"
    seed: Seed = 0
    fold_seeds: Seeds = ()
    folds: Whole = Field(default=5, ge=2, le=100)
    num_bootstrap: Whole = Field(default=1000, ge=0, le=100_000)
    primary_c: Regularisation = 1.0
    sensitivity_c: Regularisations = (0.01, 0.1, 10.0)
    hidden: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    num_permutations: Whole = Field(default=5, ge=1, le=1_000)
    num_control_words: Whole = Field(default=3, ge=1, le=100)
    sae_features: Whole = Field(default=10, ge=1, le=10_000)
    min_domain_class: Whole = Field(default=30, ge=1, le=1_000_000)
    tolerance: Real = Field(default=1e-6, ge=1e-12, le=1e-5)

    @model_validator(mode="after")
    def _seeds_differ(self) -> Self:
        """Refuse a repeated seed: it would count its folds twice in the spread."""
        if len({self.seed, *self.fold_seeds}) <= len(self.fold_seeds):
            raise ValueError(f"fold_seeds {list(self.fold_seeds)}: each once, and not {self.seed}, the seed itself")
        return self


TaskProtocol = Literal["corrected", "released", "paper"]
#: Seeds of the published protocols of a task.
PUBLISHED_SEEDS = (0, 1, 2, 3, 4)


class TaskParams(StrictModel):
    """Parameters of `prober.task`; each of them changes the figures.

    Attributes:
        task: Name of the task, for messages.
        protocol: `corrected`: converged probes; `released`, `paper`: how the code of Holmes, or its paper, trains them.
        hidden: Units of the hidden layer of the probe; None for a linear probe. Only with protocol `corrected`. C and
            tolerance are those of linear probes.
        float16: Whether vectors are rounded to float16 first, as the released code does with those of texts.
        seeds: Seeds of splits, control labels, shuffles and resamples; a value is the mean over them. 0 to 4 by default
            in the published protocols.
        c_values: Inverse regularisations to choose from on dev; without dev instances `primary_c` is used.
        primary_c: Inverse regularisation where nothing is chosen; also of the plain code length.
        control: Control task behind the selectivity: `permuted` (within train; in the published protocols over all
            splits) or `word_type`; None leaves it out.
        compression: Whether code lengths are computed. Groups stay whole in their shuffle, blocks and inner folds.
            Probes with a hidden layer have none: their rows are null, with the reason.
        compression_c: Inverse regularisations that each block of the online code chooses from.
        num_bootstrap: Resamples of the groups of the test split.
        tolerance: Gradient norm over its value at zero weights at which a probe has converged.
    """

    task: Label = ""
    protocol: TaskProtocol = "corrected"
    hidden: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    float16: Flag = False
    seeds: Seeds = Field(default=(0,), min_length=1)
    c_values: Regularisations = (0.01, 0.1, 1.0, 10.0)
    primary_c: Regularisation = 1.0
    control: Literal["permuted", "word_type"] | None = "permuted"
    compression: Flag = True
    compression_c: Regularisations = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    num_bootstrap: Whole = Field(default=1000, ge=0, le=100_000)
    tolerance: Real = Field(default=1e-5, ge=1e-12, le=1e-5)

    @model_validator(mode="before")
    @classmethod
    def _seeds_of_the_protocol(cls, values: Any) -> Any:
        """Set the seeds of the published protocols where none are given, so that they enter the keys."""
        if isinstance(values, Mapping) and values.get("protocol", "corrected") != "corrected":
            return {"seeds": PUBLISHED_SEEDS, **values}
        return values

    @model_validator(mode="after")
    def _hidden_is_ours(self) -> Self:
        """Refuse a hidden layer in the published protocols, whose probes are linear."""
        if self.hidden is not None and self.protocol != "corrected":
            raise ValueError(
                f"hidden is {self.hidden}: the probes of protocol {self.protocol} are linear; leave it out"
            )
        return self

    def choices(self, num_dev: int) -> tuple[float, ...]:
        """Return the values of C that a probe is fitted with: all where there are dev instances to choose on."""
        return self.c_values if num_dev >= 2 and self.c_values else (self.primary_c,)


class PilotParams(StrictModel):
    """Parameters of `prober.pilot`; each of them changes the answers. Those that a task has as well mean the same.

    Attributes:
        task: Name of the task, for messages.
        seeds: Seeds of samples, folds and noise. Two pilots with the same instances and seeds are paired.
        sizes: Instances of each sample, of training, development and test together; a smaller sample is part of a
            larger one.
        folds: Folds in rotation: each is test once, the next one development, the others training. 1: the split that
            the instances have, or one that the seed draws, 70 : 10 : 20.
        hidden: Units of the hidden layer of the probe; None for a linear one.
        noise: Standard deviation of normal noise that is added to every number of a vector.
        label_noise: Share of the labels of training and development that another class replaces.
        c_values: Inverse regularisations that a linear probe chooses from on development.
        tolerance: Gradient norm over its value at zero weights at which a linear probe has converged.
        protocol: `corrected`, or `published` for probes as Zhu et al. (2022) train them.
        code_length: Whether the linear probe has the C with the shortest code of the training labels, and none at all
            where class frequencies have a shorter one. Only with protocol `corrected`.
    """

    task: Label = ""
    seeds: Seeds = Field(default=(0, 1, 2, 3, 4), min_length=1)
    sizes: Annotated[tuple[Annotated[Whole, Field(ge=1, le=100_000_000)], ...], Field(min_length=1, max_length=20)]
    folds: Whole = Field(default=6, ge=1, le=100)
    hidden: Annotated[Whole, Field(ge=1, le=10_000)] | None = None
    noise: Real = Field(default=0.0, ge=0, le=1e6)
    label_noise: Real = Field(default=0.0, ge=0, le=1)
    c_values: Regularisations = Field(default=(0.01, 0.1, 1.0, 10.0), min_length=1)
    tolerance: Real = Field(default=1e-5, ge=1e-12, le=1e-5)
    protocol: Literal["corrected", "published"] = "corrected"
    code_length: Flag = False

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        """Refuse a repeated seed or size, which would count twice in a mean, and probes that cannot be."""
        for name in ("seeds", "sizes"):
            if len(set(values := getattr(self, name))) < len(values):
                raise ValueError(f"{name} {list(values)}: name each once")
        if self.code_length and (self.hidden is not None or self.protocol != "corrected"):
            raise ValueError("code_length: only linear probes of protocol corrected are chosen by their code")
        if self.folds == 2:
            raise ValueError("folds 2: three folds at least are needed for training, development and test; or 1")
        return self


class ValenceParams(StrictModel):
    """Parameters of `prober.valence`.

    Attributes:
        num_bootstrap: Resamples of the words, or of the groups of passages.
        seed: Seed of the resamples.
        direction: Construction that the reading `direction` reads along.
        name: Name of the fine-tune, for messages.
    """

    num_bootstrap: Whole = Field(default=1000, ge=0, le=100_000)
    seed: Seed = 0
    direction: Name = "C1"
    name: Label = ""


class ContrastParams(StrictModel):
    """Parameters of `prober.contrast`.

    Attributes:
        protocol: `corrected`, or `published` for the definition of the released code.
        num_bootstrap: Resamples of the subjects.
        seed: Seed of the resamples, and of the halves of each subject's rows.
    """

    protocol: Literal["corrected", "published"] = "corrected"
    num_bootstrap: Whole = Field(default=1000, ge=0, le=100_000)
    seed: Seed = 0


class SparseParams(StrictModel):
    """Parameters of `prober.sparse`; those that D1 has as well mean the same.

    Attributes:
        concept: Concept of the passages, for messages.
        ks: Numbers of features that a probe may read.
        seed: Seed of folds and resamples.
        fold_seeds: Further seeds to draw folds with, for the spread.
        folds: Number of grouped, stratified folds.
        num_bootstrap: Resamples of the groups.
        primary_c: Inverse regularisation of the probes.
        tolerance: Gradient norm over its value at zero weights at which a probe has converged.
    """

    concept: Label = ""
    ks: tuple[Annotated[Whole, Field(ge=1, le=1_000)], ...] = Field(default=(1, 2, 5), min_length=1, max_length=20)
    seed: Seed = 0
    fold_seeds: Seeds = (1, 2, 3, 4)
    folds: Whole = Field(default=5, ge=2, le=100)
    num_bootstrap: Whole = Field(default=1000, ge=0, le=100_000)
    primary_c: Regularisation = 1.0
    tolerance: Real = Field(default=1e-6, ge=1e-12, le=1e-5)


class NullParams(StrictModel):
    """Parameters of `prober.nulls`."""

    num_nulls: Whole = Field(default=20, ge=1, le=10_000)
    seed: Seed = 0


#: Parameters that directions and scores of passages do not depend on: more folds or resamples steer no new texts.
MEASURED_BY = ("num_bootstrap", "fold_seeds", "hidden")
#: Parameters that predictions of a task do not depend on.
_SCORED_BY = ("num_bootstrap", "compression", "compression_c")
#: About how many constructions of a direction a cell has.
_NUM_CONSTRUCTIONS = 6


def _directions_params(params: ProbeParams, at: Cell, *unread: str) -> dict[str, Any]:
    """Return the parameters with the set of directions, and the readout of the strategy if it has one."""
    with_sae = ("sae",) if "sae_features" in params.model_fields_set else ()
    constructions = {name: CONSTRUCTIONS.get(name).version for name in available_directions(with_sae)}
    return {**given(params, *unread), "directions": constructions, **_readout(at.strategy)}


def _readout(strategy: str) -> dict[str, Any]:
    readout = STRATEGIES.get(strategy).readout
    return {} if readout is None else {"readout": READOUTS.get(readout).identity()}


def _cell_params(part: str, *unread: str) -> KeyParams:
    return lambda params, at: {**_directions_params(params, at, *unread), "part": part}


def _inputs_of(_: ProbeParams, at: Cell, inputs: Keys) -> Keys:
    """Return the inputs of one cell: passages, its vectors, its component, the autoencoder of its layer."""
    cell_roles = {VECTORS(split, *at) for split in ("train", "test")} | {COMPONENT(*at), SAE(at.layer)}
    return {role: key for role, key in inputs.items() if role in cell_roles or PASSAGES.parse(role) is not None}


def _train_inputs_of(params: ProbeParams, at: Cell, inputs: Keys) -> Keys:
    """Return the inputs of the train split: directions come from it alone."""
    test = {PASSAGES("test"), VECTORS("test", *at)}
    return {role: key for role, key in _inputs_of(params, at, inputs).items() if role not in test}


def _measured_inputs(params: ProbeParams, at: Cell, inputs: Keys) -> Keys:
    """Return the inputs of the measures: the published protocol uses folds of the train split alone."""
    return (_train_inputs_of if params.protocol == "published" else _inputs_of)(params, at, inputs)


def _nested_inputs(_: ProbeParams, at: OfStrategy, inputs: Keys) -> Keys:
    """Return the inputs of one strategy at all layers, and the passages."""

    def belongs(role: str) -> bool:
        cell = VECTORS.parse(role) or COMPONENT.parse(role)
        return PASSAGES.parse(role) is not None if cell is None else cell.strategy == at.strategy

    return {role: key for role, key in inputs.items() if belongs(role)}


def _shards_of(common: Role[Single], shards: Role[Any], name: str) -> KeyInputs:
    """Return the rule that an output depends on a common table and on the shards of its address.

    Shards are numbered by their keys: their names move no key.
    """

    def rule(_: Any, at: tuple[Any, ...], inputs: Keys) -> Keys:
        shard_keys = {inputs[role] for role, of in shards.among(inputs) if of[:-1] == at}
        return {common(): inputs[common()], **{f"{name}/{n}": key for n, key in enumerate(sorted(shard_keys))}}

    return rule


_TASK_INPUTS = _shards_of(INSTANCES, TASK_VECTORS, "vectors")
_CONTRAST_INPUTS = _shards_of(STORIES, STORY_FEATURES, "features")


def _shift_params(part: str, *unread: str) -> KeyParams:
    def rule(params: ValenceParams, at: OfReading | OfWordReading) -> dict[str, Any]:
        of_others = () if at.reading == "direction" else ("direction",)
        return {**given(params, "name", *unread, *of_others), "reading": at.reading, "part": part}

    return rule


def _shift_inputs(part: str) -> KeyInputs:
    def rule(_: ValenceParams, at: OfReading | OfWordReading, inputs: Keys) -> Keys:
        """Return the inputs of a reading. Only the measures depend on the random states."""
        unread = set() if at.reading == "direction" else {READ_DIRECTION()}
        states = {STATE_VECTORS("before"), STATE_VECTORS("after")}
        unread |= {role for role, _ in STATE_VECTORS.among(inputs) if part != "measures" and role not in states}
        return {role: key for role, key in inputs.items() if role not in unread}

    return rule


def _sparse_inputs(_: SparseParams, at: OfAutoencoder, inputs: Keys) -> Keys:
    """Return the passages and the features of one autoencoder, by split: its name moves no key."""
    feature_keys = {
        f"features/{of.split}": inputs[role]
        for role, of in PASSAGE_FEATURES.among(inputs)
        if of.autoencoder == at.autoencoder
    }
    return {role: inputs[role] for role, _ in PASSAGES.among(inputs)} | feature_keys


def _scores_shape(sized: Sized, _: Cell) -> Shape:
    return Shape(sum(sized.inputs[PASSAGES(split)].rows for split in ("train", "test")))


def _directions_shape(sized: Sized, _: Any) -> Shape:
    return Shape(_NUM_CONSTRUCTIONS, sized.width)


def _probe_work(sized: Sized) -> tuple[float, str]:
    """Count the vectors that are read: one for each passage, strategy and layer."""
    cells = [at for role in sized.task.inputs if (at := VECTORS.parse(role)) is not None]
    rows = sum(sized.inputs[PASSAGES(at.split)].rows for at in cells)
    return rows, f"{sized.params.protocol}, {sized.read_width}"


def _task_work(sized: Sized) -> tuple[float, str]:
    """Count the instances of each cell, once for each seed. The number of classes is in the instances alone."""
    params = sized.params
    cells = {(of.strategy, of.layer) for _, of in TASK_VECTORS.among(sized.task.inputs)}
    probes = f"{len(params.c_values)} values of C" if params.protocol == "corrected" else params.protocol
    probes = probes if params.hidden is None else f"{params.hidden} hidden units"
    codes = ", code lengths" if params.compression and params.hidden is None else ""
    variant = f"{probes}, {params.control} control{codes}, {sized.read_width}"
    return sized.inputs[INSTANCES()].rows * len(cells) * len(params.seeds), variant


def _pilot_work(sized: Sized) -> tuple[float, str]:
    """Count the instances of each sample and seed, once for each probe that is fitted on them."""
    params = sized.params
    cells = {(of.strategy, of.layer) for _, of in TASK_VECTORS.among(sized.task.inputs)}
    probe = f"{len(params.c_values)} values of C" if params.hidden is None else f"{params.hidden} hidden units"
    probe += ", code lengths" if params.code_length else ""
    probe += ", published" if params.protocol == "published" else ""
    amount = sum(params.sizes) * len(cells) * len(params.seeds) * params.folds
    return amount, f"{probe}, {sized.read_width}"


PROBE = Step(
    "prober.probe",
    4,
    ProbeParams,
    inputs=(PASSAGES, VECTORS, SAE, COMPONENT),
    outputs=(
        Output(MEASURES, _cell_params("measures"), _measured_inputs, shape=measures),
        Output(DIRECTIONS, _cell_params("directions", *MEASURED_BY), _train_inputs_of, shape=_directions_shape),
        Output(SCORES, _cell_params("scores", *MEASURED_BY), _inputs_of, shape=_scores_shape),
    ),
    summary="D1 of some strategies of one concept at one layer; those that lose a common component have own tasks",
    label="probe (D1)",
    unit="vectors",
    work=_probe_work,
)
LAYERS = Step(
    "prober.layers",
    2,
    ProbeParams,
    inputs=(PASSAGES, VECTORS, COMPONENT),
    outputs=(
        Output(
            NESTED_MEASURES,
            lambda params, at: {**given(params), **_readout(at.strategy)},
            _nested_inputs,
            shape=measures,
        ),
    ),
    summary="D1 at the layer chosen inside the training folds; only with `layer_choice: nested`",
    label="choose layers",
    unit="vectors",
    work=_probe_work,
)
TASK = Step(
    "prober.task",
    4,
    TaskParams,
    inputs=(INSTANCES, TASK_VECTORS),
    outputs=(
        Output(MEASURES, part_params("measures", "task"), _TASK_INPUTS, shape=measures),
        Output(
            PREDICTIONS,
            part_params("predictions", "task", *_SCORED_BY),
            _TASK_INPUTS,
            shape=lambda of, _: Shape(of.inputs[INSTANCES()].rows * len(of.params.seeds), row_bytes=24.0),
        ),
    ),
    summary="scores, selectivity and code lengths of tasks with several classes or real values; for further suites",
    label="probe tasks",
    unit="instances",
    work=_task_work,
)
PILOT = Step(
    "prober.pilot",
    1,
    PilotParams,
    inputs=(INSTANCES, TASK_VECTORS),
    outputs=(
        Output(
            ANSWERS,
            params_without("task"),
            _TASK_INPUTS,
            shape=lambda of, _: Shape(sum(of.params.sizes) * len(of.params.seeds), row_bytes=16.0),
        ),
    ),
    summary="which test instances probes get right, in folds in rotation, at several sizes of a set",
    label="pilots",
    unit="instances",
    work=_pilot_work,
)
VALENCE = Step(
    "prober.valence",
    1,
    ValenceParams,
    inputs=(WORD_TEXTS, STATE_VECTORS, READ_DIRECTION),
    outputs=(
        Output(SHIFT_MEASURES, _shift_params("measures"), _shift_inputs("measures"), shape=measures),
        Output(
            WORD_SHIFTS,
            _shift_params("words", "num_bootstrap", "seed"),
            _shift_inputs("words"),
            shape=lambda of, _: Shape(of.inputs[WORD_TEXTS()].rows, row_bytes=80.0),
        ),
        Output(
            WORD_COSINES,
            _shift_params("cosines", "num_bootstrap", "seed"),
            _shift_inputs("cosines"),
            shape=lambda of, _: Shape(of.inputs[WORD_TEXTS()].rows, row_bytes=40.0),
        ),
    ),
    summary="preference shift of one fine-tune: how far words move towards liked and away from disliked words",
    label="preference shift",
    unit="vectors",
    work=lambda of: (sum(of.inputs[role].rows for role, _ in STATE_VECTORS.among(of.task.inputs)), of.read_width),
)
CONTRAST = Step(
    "prober.contrast",
    2,
    ContrastParams,
    inputs=(STORIES, STORY_FEATURES),
    outputs=(
        Output(CONTRAST_MEASURES, part_params("measures"), _CONTRAST_INPUTS, shape=measures),
        Output(
            SUBJECTS,
            part_params("subjects", "num_bootstrap"),
            _CONTRAST_INPUTS,
            shape=lambda of, _: Shape(of.inputs[STORIES()].rows, row_bytes=160.0),
        ),
        Output(
            BY_FEATURE,
            part_params("by_feature", *ContrastParams.model_fields),
            _CONTRAST_INPUTS,
            shape=lambda of, _: Shape(of.inputs[STORIES()].rows * FEATURES_OF_SUBJECT, row_bytes=16.0),
        ),
    ),
    summary="how clearly the features of a sparse autoencoder tell two stories about a subject apart",
    label="contrast of features",
    unit="texts",
    # The number of features is in the tables alone.
    work=lambda of: (sum(of.inputs[role].rows for role, _ in STORY_FEATURES.among(of.task.inputs)), of.params.protocol),
)
SPARSE = Step(
    "prober.sparse",
    1,
    SparseParams,
    inputs=(PASSAGES, PASSAGE_FEATURES),
    outputs=(Output(SPARSE_MEASURES, params_without("concept"), _sparse_inputs, shape=measures),),
    summary="how well a probe of k features of a sparse autoencoder tells passages with a concept from those without",
    label="sparse probes",
    unit="passages",
    work=lambda of: (
        sum(of.inputs[PASSAGES(at.split)].rows for _, at in PASSAGE_FEATURES.among(of.task.inputs)),
        f"{len(of.params.ks)} probes",
    ),
)
NULL_DIRECTIONS = Step(
    "prober.nulls",
    1,
    NullParams,
    inputs=(PASSAGES, VECTORS),
    outputs=(Output(NULLS, shape=lambda of, _: Shape(of.params.num_nulls, of.width)),),
    summary="directions of permuted labels, from the vectors of one strategy",
    label="null directions",
    unit="vectors",
    work=lambda of: (of.inputs[PASSAGES("train")].rows * of.params.num_nulls, of.read_width),
)
CONCEPT_DIRECTIONS = Step(
    "prober.directions",
    2,
    ProbeParams,
    inputs=(PASSAGES, VECTORS, COMPONENT),
    outputs=(Output(DIRECTIONS, _directions_params, _train_inputs_of, shape=_directions_shape),),
    summary="directions of a concept that is a neighbour only, without the rest of D1",
    label="directions of neighbours",
    unit="vectors",
    work=_probe_work,
)
COMPONENT_OF_ALL = Step(
    "prober.component",
    1,
    NoParams,
    inputs=(CONCEPT_VECTORS,),
    outputs=(Output(COMMON_COMPONENT, shape=_directions_shape),),
    summary="common component of the train vectors of all concepts, of one strategy at one layer",
    label="common components",
    unit="vectors",
    work=lambda of: (sum(of.inputs[role].rows for role in of.task.inputs), of.read_width),
)
ERASE = Step(
    "prober.erase",
    1,
    ProbeParams,
    inputs=(PASSAGES, VECTORS, COMPONENT, ERASED),
    outputs=(Output(ERASED_MEASURES, shape=measures),),
    summary="D1 of one strategy at one layer on the test passages, after directions were erased from its vectors",
    label="erase and probe",
    unit="vectors",
    work=lambda of: (of.inputs[PASSAGES("test")].rows * (2 + len(list(ERASED.among(of.task.inputs)))), of.read_width),
)
PROBER_STEPS = (
    PROBE, LAYERS, TASK, PILOT, VALENCE, CONTRAST, SPARSE, NULL_DIRECTIONS, CONCEPT_DIRECTIONS, COMPONENT_OF_ALL, ERASE
)  # fmt: skip
