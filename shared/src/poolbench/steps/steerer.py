"""Steps of the steerer: directions and openings to steered texts and their likelihood."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from poolbench.contracts.bounds import DirectionIds, Flag, Name, Real, Seed, Strengths, Whole
from poolbench.contracts.wire import UNSTEERED
from poolbench.contracts.work import TEXT_TOKEN_BYTES, Shape, Sized
from poolbench.steps.base import Keys, ModelParams, Output, Step, part_params
from poolbench.steps.extractor import CALIBRATION, PASSAGES
from poolbench.steps.roles import Named, Role, Single

PROMPTS = Role("prompts", Single)
DIRECTIONS = Role("directions/{name}", Named)
IMPORTED = Role("imported/{name}", Named)
TEXTS = Role("texts/{name}", Named)
FLUENCY = Role("fluency/{name}", Named)
CONTINUATIONS = Role("texts", Single)
SCORES = Role("scores/{name}", Named)

#: New tokens of one text.
MaxTokens = Annotated[int, Field(strict=True, gt=0, le=100_000)]


class GenerateParams(ModelParams):
    """Parameters of `steerer.generate`.

    Attributes:
        layer: Decoder block whose output is steered.
        direction_ids: Rows of the directions tables.
        operation: `add`, or `erase`: the projection of states on all directions of a name together is removed.
        strengths: Strengths in units of `alpha_unit`; of `erase` the share that is removed, in `absolute`.
        max_tokens: New tokens of one text.
        alpha_unit: `residual_norm` (the calibration norm of the layer) or `absolute` (1).
        positions: `generated` (the last prompt position and all after it) or `all` (the whole prompt too).
        seed: Seed of the samples.
        temperature: 0 decodes greedily.
        num_samples: Texts of each prompt at each strength.
        ignore_eos: Whether generation goes on after an end-of-sequence token.
    """

    layer: Whole = Field(ge=0, lt=1_000)
    direction_ids: DirectionIds | Literal["all"] = ("C1",)
    operation: Literal["add", "erase"] = "add"
    strengths: Strengths = (0.0,)
    max_tokens: MaxTokens
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"
    positions: Literal["generated", "all"] = "generated"
    seed: Seed = 0
    temperature: Real = Field(default=0.0, ge=0.0, le=2.0)
    num_samples: Whole = Field(default=1, gt=0, le=1_000)
    ignore_eos: Flag = False

    @model_validator(mode="after")
    def _share_is_absolute(self) -> Self:
        """Refuse a share in residual norms."""
        if self.operation == "erase" and self.alpha_unit != "absolute":
            raise ValueError("operation erase: strengths are shares, so alpha_unit must be absolute")
        return self


class CompleteParams(GenerateParams):
    """Parameters of `steerer.complete`.

    Attributes:
        scorer: Concept whose scores choose a strength.
        split_seed: Seed of the halves of the openings.
    """

    scorer: Name
    split_seed: Seed = 0


class ContinueParams(ModelParams):
    """Parameters of `steerer.continue`."""

    num_passages: Whole = Field(gt=0, le=1_000_000)  # passages that are continued, half of each class
    prompt_tokens: Whole | None = Field(default=None, gt=0, le=1_000_000)  # given tokens; None gives the first half
    max_tokens: MaxTokens  # new tokens of one text
    seed: Seed = 0
    ignore_eos: Flag = False


class ReadParams(ModelParams):
    """Parameters of `steerer.read`."""

    layer: Whole = Field(ge=0, lt=1_000)  # block whose output was steered


def _imported_of(_: ReadParams, at: Named, inputs: Keys) -> Keys:
    """Return the imported texts of a name, not those that share its task."""
    return {"imported": inputs[IMPORTED(at.name)]}


def _imported_rows(sized: Sized, at: Named) -> int:
    return sized.inputs[IMPORTED(at.name)].rows


def _own_inputs(_: GenerateParams, at: Named, inputs: Keys) -> Keys:
    """Return the inputs of a name: its own directions, not those that share its task."""
    shared = {role: inputs[role] for role in (PROMPTS(), CALIBRATION()) if role in inputs}
    directions_role = DIRECTIONS(at.name)
    return {**shared, "directions": inputs[directions_role]} if directions_role in inputs else shared


def _inputs_to_complete(params: CompleteParams, at: Named, inputs: Keys) -> Keys:
    """Return the inputs of a name and those of the unsteered texts."""
    read = {role(name) for role in (TEXTS, FLUENCY, SCORES) for name in (at.name, UNSTEERED)}
    return {**_own_inputs(params, at, inputs), **{role: key for role, key in inputs.items() if role in read}}


def _num_completed(sized: Sized, at: Named) -> int:
    """Return the most texts of a name: those that are there, and the second half at one more than the strengths."""
    second = sized.inputs[PROMPTS()].rows * sized.params.num_samples * (len(sized.params.strengths) + 1)
    return sized.inputs[TEXTS(at.name)].rows + second


def num_texts(sized: Sized) -> dict[str, int]:
    """Return the texts that `steerer.generate` writes, by name. Raise KeyError if a size is missing."""
    params = sized.params
    per_direction = sized.inputs[PROMPTS()].rows * params.num_samples * len(params.strengths)
    num_by_name = {}
    for role in sized.task.outputs:
        if (at := TEXTS.parse(role) or FLUENCY.parse(role)) is None:
            continue
        source = DIRECTIONS(at.name)
        if source not in sized.task.inputs or params.operation == "erase":
            num_directions = 1
        elif params.direction_ids == "all":
            num_directions = sized.inputs[source].rows
        else:
            num_directions = len(params.direction_ids)
        num_by_name[at.name] = per_direction * num_directions
    return num_by_name


def num_continued(sized: Sized) -> int:
    """Return the texts that `steerer.continue` writes. Raise KeyError if a size is missing."""
    return min(int(sized.params.num_passages), sized.inputs[PASSAGES()].rows)


def _texts(sized: Sized, rows: int) -> Shape:
    return Shape(rows, row_bytes=sized.params.max_tokens * TEXT_TOKEN_BYTES + 32.0)


GENERATE = Step(
    "steerer.generate",
    1,
    GenerateParams,
    inputs=(DIRECTIONS, PROMPTS, CALIBRATION),
    outputs=(
        Output(TEXTS, part_params("texts"), _own_inputs, shape=lambda of, at: _texts(of, num_texts(of)[at.name])),
        Output(FLUENCY, part_params("fluency"), _own_inputs, shape=lambda of, at: Shape(num_texts(of)[at.name])),
    ),
    summary="steered texts of each name, their receipts, and their likelihood under the unsteered model; "
    "without directions the unsteered texts",
    label="steer (D2, D3)",
    unit="tokens",
    work=lambda of: (sum(num_texts(of).values()) * of.params.max_tokens, of.params.variant),
)
COMPLETE = Step(
    "steerer.complete",
    1,
    CompleteParams,
    inputs=(DIRECTIONS, PROMPTS, CALIBRATION, TEXTS, FLUENCY, SCORES),
    outputs=(
        Output(
            TEXTS, part_params("texts"), _inputs_to_complete, shape=lambda of, at: _texts(of, _num_completed(of, at))
        ),
        Output(
            FLUENCY, part_params("fluency"), _inputs_to_complete, shape=lambda of, at: Shape(_num_completed(of, at))
        ),
    ),
    summary="the texts of each name, with those of further openings at the strength that the scores of the first ones "
    "choose, and at the strengths of the task",
    label="steer at the best strength (D2, D3)",
    unit="tokens",
    work=lambda of: (
        sum(
            (_num_completed(of, at) - of.inputs[role].rows) * of.params.max_tokens
            for role, at in TEXTS.among(of.task.inputs)
            if at.name != UNSTEERED
        ),
        of.params.variant,
    ),
)
CONTINUE = Step(
    "steerer.continue",
    1,
    ContinueParams,
    inputs=(PASSAGES,),
    outputs=(Output(CONTINUATIONS, shape=lambda of, _: _texts(of, num_continued(of))),),
    summary="unsteered continuations of the first halves of passages, for the gate of the scorers",
    label="continue passages",
    unit="tokens",
    work=lambda of: (num_continued(of) * of.params.max_tokens, of.params.variant),
)
READ = Step(
    "steerer.read",
    1,
    ReadParams,
    inputs=(IMPORTED,),
    outputs=(
        Output(
            TEXTS,
            part_params("texts"),
            _imported_of,
            shape=lambda of, at: Shape(_imported_rows(of, at), row_bytes=200 * TEXT_TOKEN_BYTES + 32.0),
        ),
        Output(FLUENCY, part_params("fluency"), _imported_of, shape=lambda of, at: Shape(_imported_rows(of, at))),
    ),
    summary="tokens of texts that others steered, and their likelihood under the unsteered model",
    label="read imported texts",
    unit="texts",
    work=lambda of: (sum(of.inputs[role].rows for role, _ in IMPORTED.among(of.task.inputs)), of.params.variant),
)
STEERER_STEPS = (GENERATE, COMPLETE, CONTINUE, READ)
