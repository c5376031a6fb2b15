"""Steps of the scorer: training, validity gate, and scores of texts."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from poolbench.config.base import StrictModel
from poolbench.contracts.bounds import Label, ModelName, Name, Real, Revision, Seed, Subfolder, Whole
from poolbench.contracts.work import Shape, Sized, measures
from poolbench.steps.base import Keys, Output, Step, part_params
from poolbench.steps.roles import Named, OfConcept, Role, Single
from poolbench.steps.steerer import SCORES, TEXTS

#: Content tokens of the longest window that is scored at once; longer texts are averaged over windows.
WINDOW_TOKENS = 128

FORMAT_VERSION = 1
#: Files of a scorer artifact; an imported scorer has `model/...` instead of weights on top of a base.
WEIGHTS, CONFIG, REPORT = "weights.safetensors", "config.json", "report.json"
IMPORTED = "model/"

SCORER_PASSAGES = Role("passages/scorer", Single)
TEST_PASSAGES = Role("passages/test", Single)
SCORER = Role("scorer", Single)
MEASURES = Role("measures", Single)
CONTINUATIONS = Role("continuations", Single)
SCORERS = Role("scorer/{concept}", OfConcept)
SCORED = Role("scored/{name}", Named)

WindowTokens = Annotated[int, Field(strict=True, ge=1, le=WINDOW_TOKENS)]
Mode = Literal["auto", "head", "full", "import"]


class TrainParams(StrictModel):
    """How one concept's classifier is trained.

    Attributes:
        concept: Concept id.
        base: `minilm` (ships with the project), a folder, or an id such as `bert-base-uncased`; with mode `import`,
            the published classifier itself.
        revision: Hugging Face revision of the base.
        mode: `head` freezes the lower layers, computes their states once and trains the rest; `full` fine-tunes
            everything; `import` takes a published classifier as it is; `auto` is head on a CPU and full on a GPU.
        num_layers: Lower layers of the base to build on, without those above; all by default. A concept that single
            words carry needs few, and scores cost in proportion.
        trained_layers: Layers above the frozen ones in mode head.
        epochs: Passes over the windows; by default 3, and 6 in mode head, where an epoch costs little.
        patience: Training ends early after this many epochs that validate no better than an earlier one.
        learning_rate: Peak rate; by default 2e-5, and 1e-3 in mode head (one layer above a frozen encoder needs a
            larger step).
        batch_size: Windows in a step; by default 16, and 8 in mode head.
        num_windows: Generation-like windows cut from each passage, besides one of 128 tokens.
        window_tokens: Shortest and longest generation-like window, in tokens of the base.
        rule: Version of the concept's word rule (`poolbench.word_rules`), where it labelled the passages. A
            window of a positive that it counts as a negative is not taught as a positive, and held-out windows have
            the class that it counts them to.
        degenerate_share: Broken positive windows (two of three shuffled, one looping) taught as negatives, per pair of
            ordinary windows.
        subfolder: Where a published classifier lies inside its repository.
        positive_label: Label, or index of it, of a published classifier that means the concept; `{concept}` in it
            stands for the concept's id. Only a classifier with one output needs none.
        tokenizer: Base whose tokenizer a published classifier reads with, where it brings none.
    """

    concept: Name
    base: ModelName = "minilm"
    revision: Revision | None = None
    seed: Seed = 0
    mode: Mode = "auto"
    num_layers: Whole | None = Field(default=None, ge=1, le=1_000)
    trained_layers: Whole = Field(default=1, ge=1, le=1_000)
    epochs: Whole | None = Field(default=None, ge=1, le=100)
    patience: Whole = Field(default=2, ge=1, le=100)
    learning_rate: Real | None = Field(default=None, gt=0, le=1)
    weight_decay: Real = Field(default=0.01, ge=0, le=10)
    warmup_share: Real = Field(default=0.1, ge=0, lt=1)
    batch_size: Whole | None = Field(default=None, ge=2, le=1_024)
    num_windows: Whole = Field(default=3, ge=1, le=100)
    window_tokens: tuple[WindowTokens, WindowTokens] = (24, 64)
    rule: Whole | None = Field(default=None, ge=1, le=1_000)
    degenerate_share: Real = Field(default=0.3, ge=0, le=1)
    validation_share: Real = Field(default=0.2, gt=0, lt=1)
    num_bootstrap: Whole = Field(default=1000, ge=100, le=100_000)
    subfolder: Subfolder = ""
    positive_label: Label | None = None
    tokenizer: ModelName | None = None

    @model_validator(mode="after")
    def _check_window(self) -> "TrainParams":
        low, high = self.window_tokens
        if not 1 <= low <= high <= WINDOW_TOKENS:
            raise ValueError(f"window_tokens {low}..{high}: need 1 <= shortest <= longest <= {WINDOW_TOKENS}")
        return self

    def resolved(self, on_gpu: bool) -> "TrainParams":
        """Return these settings with every default that depends on mode or device filled in."""
        mode = ("full" if on_gpu else "head") if self.mode == "auto" else self.mode
        head = mode == "head"
        filled = {
            "mode": mode,
            "epochs": self.epochs or (6 if head else 3),
            "learning_rate": self.learning_rate or (1e-3 if head else 2e-5),
            "batch_size": self.batch_size or (8 if head else 16),
        }
        return self.model_copy(update=filled)


class FoundParams(TrainParams):
    """Parameters of an import on request, with what it found."""

    weights: str | None = None  # revision of the weights; other weights under the same name are another scorer


class GateParams(StrictModel):
    """The validity gate (docs/metrics.md, Scorers).

    Attributes:
        num_tokens: Generation length in tokens of the language model; corpus texts are cut to the median
            length of the continuations in the scorer's tokens, or to this number where there are none.
        min_corpus_auroc: Part (a): what the lower bound of the interval must reach.
        min_continuation_auroc: Part (b): what the lower bound must exceed.
        max_degenerate_level: Part (c): what the upper bound of the mean level of broken texts may
            not exceed, where intact negatives have level 0 and intact positives level 1.
        min_class: Fewest texts of a class for a part to be judged.
        rule: Version of the concept's word rule (`poolbench.word_rules`) that labels cut passages and
            continuations; without it they have the class of their passage.
        min_rule_class: Fewest continuations that the rule counts to a class; with fewer, part (b) is not judged.
    """

    num_tokens: Whole = Field(default=40, ge=1, le=100_000)
    min_corpus_auroc: Real = Field(default=0.75, ge=0, le=1)
    min_continuation_auroc: Real = Field(default=0.6, ge=0, le=1)
    max_degenerate_level: Real = Field(default=0.5, ge=-10, le=10)
    min_class: Whole = Field(default=10, ge=2, le=1_000_000)
    rule: Whole | None = Field(default=None, ge=1, le=1_000)
    min_rule_class: Whole = Field(default=30, ge=2, le=1_000_000)
    num_bootstrap: Whole = Field(default=1000, ge=100, le=100_000)
    seed: Seed = 0


class ScoreParams(StrictModel):
    """How texts are scored.

    Attributes:
        batch_tokens: Tokens with padding in one forward pass; has no influence on scores beyond rounding.
    """

    batch_tokens: Whole = Field(default=2048, ge=WINDOW_TOKENS, le=1_000_000)


def _score_inputs(_: ScoreParams, at: Named, inputs: Keys) -> Keys:
    """Return the texts of a name and all scorers of the task; scores that are there already spare work only."""
    scorers = {role: inputs[role] for role, __ in SCORERS.among(inputs)}
    return {**scorers, "texts": inputs[TEXTS(at.name)]}


def _train_work(sized: Sized) -> tuple[float, str]:
    params = sized.params
    layers = "" if params.num_layers is None else f", {params.num_layers} layers"
    return sized.inputs[SCORER_PASSAGES()].rows, f"{params.base}, {params.mode}{layers}"


def _score_work(sized: Sized) -> tuple[float, str]:
    scorers = [role for role in sized.task.inputs if SCORERS.parse(role)]
    names = [at.name for role in sized.task.outputs if (at := SCORES.parse(role)) is not None]
    texts = sum(sized.inputs[TEXTS(name)].rows for name in names)
    scored = sum(sized.inputs[role].rows for role, _ in SCORED.among(sized.task.inputs))
    return texts * len(scorers) - scored, sized.inputs[scorers[0]].base


TRAIN = Step(
    "scorer.train",
    3,
    TrainParams,
    inputs=(SCORER_PASSAGES,),
    outputs=(
        Output(
            SCORER,
            part_params("scorer"),
            # Weights in float32: of the trained layer, or of the whole base, whose size is not known here.
            shape=lambda of, _: Shape(1, base=of.params.base, row_bytes=8e6 if of.params.mode == "head" else 4.4e8),
        ),
        Output(MEASURES, part_params("measures"), shape=measures),
    ),
    summary="the classifier of one concept, with the measures of its training; imports take no passages",
    label="train scorers",
    unit="passages",
    work=_train_work,
)
GATE = Step(
    "scorer.gate",
    3,
    GateParams,
    inputs=(SCORER, TEST_PASSAGES, CONTINUATIONS),
    outputs=(Output(MEASURES, shape=measures),),
    summary="whether the scorer is valid on passages, continuations and broken texts",
    label="gate scorers",
    unit="texts",
    work=lambda of: (of.inputs[TEST_PASSAGES()].rows + of.inputs[CONTINUATIONS()].rows, of.inputs[SCORER()].base),
)
SCORE = Step(
    "scorer.score",
    1,
    ScoreParams,
    inputs=(SCORERS, TEXTS, SCORED),
    outputs=(
        Output(
            SCORES,
            lambda _, __: {},  # no parameter changes a score
            _score_inputs,
            shape=lambda of, at: Shape(of.inputs[TEXTS(at.name)].rows * len(list(SCORERS.among(of.inputs)))),
        ),
    ),
    summary="scores of the texts of each name by every scorer of the task; those that are there already are copied",
    label="score texts",
    unit="scores",
    work=_score_work,
)
SCORER_STEPS = (TRAIN, GATE, SCORE)
