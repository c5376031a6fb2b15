"""Steps of the steerer: directions and openings to steered texts and their likelihood."""

from typing import Annotated, Literal

from pydantic import Field

from poolbench.contracts.bounds import Flag, Name, Real, Seed, Whole
from poolbench.steps.base import Keys, Output, Step, part_params
from poolbench.steps.common import ModelParams
from poolbench.steps.extractor import CALIBRATION, PASSAGES
from poolbench.steps.roles import Named, Role, Single

PROMPTS = Role("prompts", Single)
DIRECTIONS = Role("directions/{name}", Named)
TEXTS = Role("texts/{name}", Named)
FLUENCY = Role("fluency/{name}", Named)
CONTINUATIONS = Role("texts", Single)

#: Rows of a directions table.
Directions = Annotated[tuple[Name, ...], Field(max_length=1_000)]
Strength = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-1e6, le=1e6)]
Strengths = Annotated[tuple[Strength, ...], Field(max_length=1_000)]
#: New tokens of one text.
MaxTokens = Annotated[int, Field(strict=True, gt=0, le=100_000)]


class GenerateParams(ModelParams):
    """Parameters of `steerer.generate`.

    Attributes:
        layer: Decoder block whose output is steered.
        direction_ids: Rows of the directions tables.
        strengths: Strengths in units of `alpha_unit`.
        max_tokens: New tokens of one text.
        alpha_unit: `residual_norm` (the calibration norm of the layer) or `absolute` (1).
        positions: `generated` (the last prompt position and all after it) or `all` (the whole prompt too).
        seed: Seed of the samples.
        temperature: 0 decodes greedily.
        num_samples: Texts of each prompt at each strength.
        ignore_eos: Whether generation goes on after an end-of-sequence token.
    """

    layer: Whole = Field(ge=0, lt=1_000)
    direction_ids: Directions | Literal["all"] = ("C1",)
    strengths: Strengths = (0.0,)
    max_tokens: MaxTokens
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"
    positions: Literal["generated", "all"] = "generated"
    seed: Seed = 0
    temperature: Real = Field(default=0.0, ge=0.0, le=2.0)
    num_samples: Whole = Field(default=1, gt=0, le=1_000)
    ignore_eos: Flag = False


class ContinueParams(ModelParams):
    """Parameters of `steerer.continue`."""

    num_passages: Whole = Field(gt=0, le=1_000_000)  # passages that are continued, half of each class
    prompt_tokens: Whole | None = Field(default=None, gt=0, le=1_000_000)  # given tokens; None gives the first half
    max_tokens: MaxTokens  # new tokens of one text
    seed: Seed = 0
    ignore_eos: Flag = False


def _own_inputs(_: GenerateParams, at: Named, inputs: Keys) -> Keys:
    """Return the inputs of a name: its own directions, not those that share its task."""
    shared = {role: inputs[role] for role in (PROMPTS(), CALIBRATION()) if role in inputs}
    own = DIRECTIONS(at.name)
    return {**shared, "directions": inputs[own]} if own in inputs else shared


GENERATE = Step(
    "steerer.generate",
    1,
    GenerateParams,
    inputs=(DIRECTIONS, PROMPTS, CALIBRATION),
    outputs=(Output(TEXTS, part_params("texts"), _own_inputs), Output(FLUENCY, part_params("fluency"), _own_inputs)),
    summary="steered texts of each name, their receipts, and their likelihood under the unsteered model; "
    "without directions the unsteered texts",
)
CONTINUE = Step(
    "steerer.continue",
    1,
    ContinueParams,
    inputs=(PASSAGES,),
    outputs=(Output(CONTINUATIONS),),
    summary="unsteered continuations of the first halves of passages, for the gate of the scorers",
)
STEERER_STEPS = (GENERATE, CONTINUE)
