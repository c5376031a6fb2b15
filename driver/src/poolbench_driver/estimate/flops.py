"""Times of tasks from FLOPs and bandwidth, for stages that this cluster has not executed yet.

docs/operations/sizing.md explains the formulas. A range covers what is assumed: utilisations, lengths of texts, and the
number of parameters, which is computed from depth and width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poolbench.pooling.registry import STRATEGIES
from poolbench.steps import extractor, pooler, prober, scorer, steerer
from poolbench.steps.work import Sized
from poolbench_driver.estimate import hardware as hw
from poolbench_driver.estimate.amounts import Amount
from poolbench_driver.estimate.quantities import Range
from poolbench_driver.stages.scope import TOKENS_PER_WORD
from poolbench_driver.stages.stage import PlanFacts

#: Ranges as factors: of stages whose utilisation was measured on a GPU, of those where it is assumed, and on CPUs.
MEASURED, ASSUMED, ON_CPU = (0.6, 2.0), (0.4, 3.0), (0.3, 3.0)
_OPENING_TOKENS = 12.0
#: Windows of a passage that a scorer is trained on: one of 128 tokens, and shorter ones.
_LONG_WINDOW, _SHORT_WINDOW = 128.0, 44.0
#: Further scorers of a task add this share to the time of the first, because they share the frozen layers.
_NEXT_SCORER = 0.13
#: Inner fits per fold of `prober.layers`.
_INNER_FITS = 4


class NoEstimateError(Exception):
    """The model has no estimate for a task; the message says why."""


def decoder_parameters(num_blocks: int, width: int) -> float:
    """Return about how many parameters the blocks of a decoder have.

    Attention has 4 D^2 and the feed-forward layers 8 D^2 each block. Current models of 7 to 9 billion parameters have
    8 to 25 % more. Embeddings are left out.
    """
    return 12.0 * num_blocks * width**2


@dataclass(frozen=True)
class Model:
    """Times of tasks on a kind of GPU, and of CPU services on one replica with two cores."""

    facts: PlanFacts
    gpu: hw.Gpu | None  # None: extractor, scorer and steerer have no GPU

    @property
    def parameters(self) -> float:
        """Return the parameters of the decoder's blocks."""
        return decoder_parameters(self.facts.model.num_blocks, self.facts.model.width)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of the weights in the model's dtype."""
        return self.parameters * (4 if self.facts.model.ref.dtype == "float32" else 2)

    def seconds(self, amount: Amount) -> Range:
        """Return the time of a task on one replica. Raise NoEstimateError if the model has none."""
        formula = FORMULAS[amount.task.kind]
        if formula is None:
            raise NoEstimateError(f"the model has no formula for {amount.task.kind}")
        if amount.task.service in hw.GPU_SERVICES and self.gpu is None:
            raise NoEstimateError("the model has figures for GPUs only: give --gpus")
        try:
            return formula(self, amount.sized)
        except KeyError:
            raise NoEstimateError("the number of passages is not known before the run") from None

    def start_s(self, service: str) -> Range:
        """Return the time until a replica of a service has loaded the language model."""
        if self.gpu is None or service not in ("extractor", "steerer"):
            return Range(0.0, 0.0, 0.0)
        loading = self.weight_bytes / hw.LOADING_BYTES_PER_S
        return Range.around(hw.ENGINE_START_S if service == "steerer" else loading, 0.3, 3.0)

    def prefill_s(self, tokens: float, share: float) -> float:
        """Return the time of a forward pass over whole texts, at a share of the GPU's peak."""
        return 2.0 * self.parameters * tokens / (self._gpu.flops * share)

    def decoding_s(self, texts: int, tokens: int) -> float:
        """Return the time of generating: full batches, one after the other; each step reads the weights once."""
        step_s = hw.DECODING_HOST_S + self.weight_bytes / self._gpu.bandwidth
        return math.ceil(texts / hw.ENGINE_BATCH) * tokens * step_s

    @property
    def _gpu(self) -> hw.Gpu:
        assert self.gpu is not None
        return self.gpu


def _extract(model: Model, sized: Sized) -> Range:
    params = sized.params
    needs = {need for each in params.strategies for need in STRATEGIES.get(each.id).needs}
    overhead = hw.GRADIENT_OVERHEAD if "gradient" in needs else hw.EXTRACTION_OVERHEAD
    depth = (max(params.layers) + 1) / model.facts.model.num_blocks
    tokens = sized.inputs[extractor.PASSAGES()].rows * sized.passage_tokens
    return Range.around(model.prefill_s(tokens, hw.PREFILL_SHARE) * depth * overhead, *MEASURED)


def _calibrate(model: Model, sized: Sized) -> Range:
    tokens = sized.inputs[extractor.PASSAGES()].rows * sized.passage_tokens
    return Range.around(1.0 + model.prefill_s(tokens, hw.PREFILL_SHARE), *ASSUMED)


def _count(model: Model, sized: Sized) -> Range:
    tokens = sum(shape.rows for shape in sized.inputs.values()) * sized.passage_tokens
    return Range.around(tokens / 300_000, *ON_CPU)  # of a fast tokenizer on one core


def _generate(model: Model, sized: Sized) -> Range:
    params = sized.params
    texts = sum(steerer.num_texts(sized).values())
    scored = texts * (_OPENING_TOKENS + params.max_tokens)
    likelihood_s = model.prefill_s(scored, hw.LIKELIHOOD_SHARE)
    return Range.around(model.decoding_s(texts, params.max_tokens) + likelihood_s, *MEASURED)


def _continue(model: Model, sized: Sized) -> Range:
    params = sized.params
    texts = steerer.num_continued(sized)
    prompts_s = model.prefill_s(texts * sized.passage_tokens / 2, hw.LIKELIHOOD_SHARE)
    return Range.around(model.decoding_s(texts, params.max_tokens) + prompts_s, *MEASURED)


def _train(model: Model, sized: Sized) -> Range:
    params = sized.params.resolved(on_gpu=True)
    if params.mode == "import":
        return Range.around(10.0, *ASSUMED)
    windows = sized.inputs[scorer.SCORER_PASSAGES()].rows * (1 + params.num_windows) * (1 + params.degenerate_share / 2)
    tokens = windows * (_LONG_WINDOW + params.num_windows * _SHORT_WINDOW) / (1 + params.num_windows)
    epochs, batch_size = params.epochs or 1, params.batch_size or 1
    steps = windows * (1 - params.validation_share) * epochs / batch_size
    passes = 2.0 if params.mode == "head" else 6.0 * epochs
    flops_s = passes * _encoder(params.base) * tokens / (model._gpu.flops * hw.ENCODER_SHARE)
    return Range.around(flops_s + steps * hw.TRAINING_STEP_S[params.mode], *ASSUMED)


def _gate(model: Model, sized: Sized) -> Range:
    texts = sized.inputs[scorer.TEST_PASSAGES()].rows + sized.inputs[scorer.CONTINUATIONS()].rows
    base = sized.inputs[scorer.SCORER()].base
    return Range.around(2.0 + _encoding_s(model, base, 3 * texts * _LONG_WINDOW), *ASSUMED)


def _score(model: Model, sized: Sized) -> Range:
    scorers = [role for role, _ in scorer.SCORERS.among(sized.inputs)]
    texts = sum(shape.rows for role, shape in sized.inputs.items() if steerer.TEXTS.parse(role))
    tokens = texts * model.facts.text_tokens
    more = 1 + _NEXT_SCORER * (len(scorers) - 1)
    return Range.around(0.5 + more * _encoding_s(model, sized.inputs[scorers[0]].base, tokens), *ASSUMED)


def _encoding_s(model: Model, base: str, tokens: float) -> float:
    flops_s = 2.0 * _encoder(base) * tokens / (model._gpu.flops * hw.ENCODER_SHARE)
    return flops_s + tokens / scorer.ScoreParams().batch_tokens * hw.SCORING_BATCH_S


def _encoder(base: str) -> float:
    if base not in hw.ENCODER_PARAMETERS:
        known = ", ".join(hw.ENCODER_PARAMETERS)
        raise NoEstimateError(f"the size of the scorers' base {base} is not known (known: {known})")
    return hw.ENCODER_PARAMETERS[base]


def _annotate(model: Model, sized: Sized) -> Range:
    words = sized.inputs[extractor.PASSAGES()].rows * sized.passage_tokens / TOKENS_PER_WORD
    return Range.around(words / hw.ANNOTATED_TOKENS_PER_S, *ON_CPU)


def _probe(model: Model, sized: Sized) -> Range:
    cells = sum(1 for role in sized.task.inputs if (at := prober.VECTORS.parse(role)) and at.split == "train")
    inner = _INNER_FITS if sized.task.kind == prober.LAYERS.kind else 1
    fits_s = inner * hw.PROBER_FITS * _fit_s(sized, hw.PROBES_AT_ONCE)
    return Range.around(cells * (hw.CELL_S + fits_s), *ON_CPU)


def _fit_s(sized: Sized, num_probes: int) -> float:
    """Return the time of one fit on four fifths of the rows: their inner products, then products with these."""
    rows = 0.8 * sized.inputs[prober.PASSAGES("train")].rows
    operations = 2.0 * rows**2 * (sized.width + hw.PROBER_ITERATIONS * num_probes)
    return operations / hw.PROBER_FLOPS


def _directions(model: Model, sized: Sized) -> Range:
    cells = sum(1 for role in sized.task.inputs if prober.VECTORS.parse(role))
    return Range.around(cells * (0.05 + _fit_s(sized, 1)), *ON_CPU)


def _component(model: Model, sized: Sized) -> Range:
    rows = sum(shape.rows for shape in sized.inputs.values())
    return Range.around(0.1 + 4.0 * rows * sized.width**2 / hw.PROBER_FLOPS, *ON_CPU)


def _nulls(model: Model, sized: Sized) -> Range:
    rows = sized.inputs[prober.PASSAGES("train")].rows
    numbers = rows * sized.width * sized.params.num_nulls
    return Range.around(0.1 + 2.0 * numbers / hw.PROBER_FLOPS, *ON_CPU)


def _valence(_: Model, sized: Sized) -> Range:
    numbers = sum(sized.inputs[role].rows for role, _ in prober.STATE_VECTORS.among(sized.task.inputs)) * sized.width
    return Range.around(0.2 + numbers / hw.SHIFT_NUMBERS_PER_S, *ON_CPU)


def _contrast(_: Model, sized: Sized) -> Range:
    rows = sum(sized.inputs[role].rows for role, _ in prober.STORY_FEATURES.among(sized.task.inputs))
    return Range.around(0.3 + rows / hw.CONTRASTED_TEXTS_PER_S, *ON_CPU)


#: The formula of each step; None: it has none, and its time comes from recorded timings alone. `prober.task` depends on
#: the number of classes, which is in its targets and in no plan; `extractor.features`, `extractor.recovered` and
#: `prober.sparse` on the widths of autoencoders.
FORMULAS: Mapping[str, Callable[[Model, Sized], Range] | None] = {
    pooler.ANNOTATE.kind: _annotate,
    pooler.POOL.kind: None,
    extractor.EXTRACT.kind: _extract,
    extractor.CALIBRATE.kind: _calibrate,
    extractor.COUNT.kind: _count,
    extractor.FEATURES_OF.kind: None,
    extractor.RECOVERED.kind: None,
    prober.PROBE.kind: _probe,
    prober.LAYERS.kind: _probe,
    prober.TASK.kind: None,
    prober.VALENCE.kind: _valence,
    prober.CONTRAST.kind: _contrast,
    prober.SPARSE.kind: None,
    prober.NULL_DIRECTIONS.kind: _nulls,
    prober.CONCEPT_DIRECTIONS.kind: _directions,
    prober.COMPONENT_OF_ALL.kind: _component,
    steerer.GENERATE.kind: _generate,
    steerer.CONTINUE.kind: _continue,
    scorer.TRAIN.kind: _train,
    scorer.GATE.kind: _gate,
    scorer.SCORE.kind: _score,
}
