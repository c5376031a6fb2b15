"""The texts of a task and their seeds: pure functions, no engine, no store, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts.bounds import require_at_most
from poolbench.contracts.keys import digest
from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.wire import UNSTEERED
from poolbench.directions.erasure import orthonormal
from poolbench.errors import CellError, InputError, LayerError
from poolbench.statistics.response import FluencyRules, SteeredTables, best_column, response_grids
from poolbench.steps.steerer import CompleteParams, GenerateParams
from poolbench_steerer.plugin.bank import vector_id


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and token ids."""

    prompt_id: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Direction:
    """A steering direction, with the name that its texts will have."""

    key: str
    vector: np.ndarray
    source: str = ""  # key of the artifact that holds it

    @property
    def vector_id(self) -> str:
        """Return the hash of the vector, as used in receipts."""
        return vector_id(self.vector)


@dataclass(frozen=True)
class PlannedText:
    """One text to generate: prompt, direction and strength. Without a draw, decoding is greedy."""

    prompt: Prompt
    direction_key: str
    strength: float
    alpha: float
    layer: int | None  # None: not steered, and no layer in question
    vector_id: str | None = None
    draw: "Draw | None" = None
    source: str = ""  # key of the direction's artifact
    erases: bool = False  # the vector is erased instead of added, and with it the further ones
    also_erased: tuple[str, ...] = ()  # ids of further vectors

    @property
    def text_id(self) -> str:
        """Return the id of the text, a hash of the request.

        The hash excludes the bits of vector and alpha. These change if an artifact is computed again, and then the
        fluency and scores that are already committed would refer to other texts.
        """
        steering = [self.source, self.direction_key, self.strength, self.layer, *(["erase"] if self.erases else [])]
        sampling = [] if self.draw is None else [asdict(self.draw)]
        return digest([self.prompt.prompt_id, self.prompt.text, *steering, *sampling], 20)


def choose_directions(
    name: str, table: pa.Table, wanted: Sequence[str] | Literal["all"], source: str = ""
) -> tuple[list[Direction], dict[str, str]]:
    """Return the usable directions of an artifact, and the reasons why other directions are not usable.

    Raise InputError if a wanted direction is absent.
    """
    ids = table.column("direction_id").to_pylist()
    absent = [] if wanted == "all" else sorted(set(wanted) - set(ids))
    if absent:
        raise InputError(f"directions/{name} has no {', '.join(absent)}; it has {', '.join(ids)}")
    matrix = vector_matrix(table.column("vector"))
    reasons = table.column("reason").to_pylist() if "reason" in table.column_names else [None] * len(ids)
    usable, skipped = [], {}
    for direction_id, vector, reason in zip(ids, matrix, reasons, strict=True):
        if wanted != "all" and direction_id not in wanted:
            continue
        if np.isfinite(vector).all():
            usable.append(Direction(f"{name}/{direction_id}", vector, source))
        else:
            skipped[direction_id] = reason or "the direction is null or not finite"
    return usable, skipped


def residual_norm(calibration: pa.Table, layer: int) -> float:
    """Return the median residual norm at a layer. Raise LayerError if the layer was not calibrated."""
    layers = calibration.column("layer").to_pylist()
    if layer not in layers:
        raise LayerError(f"the calibration has no layer {layer}; it has {', '.join(map(str, layers))}")
    return float(calibration.column("median_residual_norm")[layers.index(layer)].as_py())


def plan_texts(
    prompts: Sequence[Prompt],
    directions: Iterable[Direction],
    strengths: Sequence[float],
    layer: int,
    unit: float,
    draws: "Draws | None" = None,
) -> list[PlannedText]:
    """Plan a text for each direction, strength, prompt and draw, with alpha = strength * unit."""
    return [
        PlannedText(
            prompt, direction.key, strength, strength * unit, layer, direction.vector_id, draw, direction.source
        )
        for direction in directions
        for strength in strengths
        for prompt in prompts
        for draw in draws_of(prompt.prompt_id, draws)
    ]


def strengths_to_read(
    direction: str, first: SteeredTables | None, unsteered: SteeredTables | None, params: GenerateParams
) -> list[float]:
    """Return the strengths for a direction: the task's strengths, and the best strength of the first texts, if any.

    The best strength is chosen on the first half of the openings, if a strength leaves the texts of these fluent.
    """
    if first is None or unsteered is None or not isinstance(params, CompleteParams):
        return list(params.strengths)
    try:
        grid = response_grids(first, unsteered, params.scorer, params.split_seed)[direction]
        best = grid.strengths[best_column(grid.at_openings(grid.halves[0]), FluencyRules())]
    except CellError:
        return list(params.strengths)
    texts = first.texts.filter(pc.equal(first.texts["direction_key"], direction))
    exact = [strength for strength in pc.unique(texts["strength"]).to_pylist() if round(strength, 9) == best]
    return sorted({*params.strengths, *exact})


def erased_subspace(name: str, directions: Sequence[Direction]) -> list[Direction]:
    """Return an orthonormal basis of the subspace that some directions span.

    Erasing the basis vectors one after the other erases the subspace. This does not hold for directions that are not
    orthogonal.
    """
    if not directions:
        return []
    basis_rD = orthonormal(np.stack([direction.vector for direction in directions])).astype(np.float32)
    return [Direction(name, vector, directions[0].source) for vector in basis_rD]


def plan_erased(
    prompts: Sequence[Prompt], basis: Sequence[Direction], shares: Sequence[float], layer: int, draws: "Draws | None"
) -> list[PlannedText]:
    """Plan texts in which a share of the projection on a subspace is removed. Without a subspace, plan none."""
    rest = tuple(direction.vector_id for direction in basis[1:])
    return [
        replace(text, also_erased=rest, erases=True)
        for text in plan_texts(prompts, basis[:1], shares, layer, 1.0, draws)
    ]


def plan_unsteered(prompts: Sequence[Prompt], layer: int | None, draws: "Draws | None" = None) -> list[PlannedText]:
    """Return the unsteered texts of each prompt, one per draw."""
    return [
        PlannedText(prompt, UNSTEERED, 0.0, 0.0, layer, draw=draw)
        for prompt in prompts
        for draw in draws_of(prompt.prompt_id, draws)
    ]


def choose_passages(passages: pa.Table, num_passages: int) -> list[dict[str, Any]]:
    """Return as many positive as negative passages, at most `num_passages` in all, by passage id."""
    rows = sorted(passages.select(["passage_id", "label", "text"]).to_pylist(), key=lambda row: row["passage_id"])
    by_label = [[row for row in rows if row["label"] == label] for label in (1, 0)]
    if not all(by_label):
        raise InputError("continuations need positive and negative passages; one class is empty")
    per_class = max(1, min(num_passages // 2, *map(len, by_label)))
    return [row for group in by_label for row in group[:per_class]]


def first_half(token_ids: Sequence[int], limit: int | None = None) -> tuple[int, ...]:
    """Return the first half of a passage, at most `limit` tokens and at least one."""
    half = len(token_ids) // 2
    return tuple(token_ids[: max(1, half if limit is None else min(limit, half))])


@dataclass(frozen=True)
class Draw:
    """The sampling of one text.

    Attributes:
        sample: Number of the text among the samples of its prompt.
        seed: Seed of the text. For each sample of a prompt, all directions and strengths share a seed, so that
            comparisons are paired. No text depends on the rest of the batch.
    """

    sample: int
    seed: int
    temperature: float

    def columns(self) -> dict[str, Any]:
        """Return the columns of SAMPLES."""
        return {"sample": self.sample, "sample_seed": self.seed, "temperature": self.temperature}


#: The draws of each prompt's samples, by prompt id.
Draws = Mapping[str, Sequence[Draw]]


def plan_draws(prompt_ids: Iterable[str], *, temperature: float, num_samples: int, seed: int) -> Draws | None:
    """Return the draws of each prompt, or None if decoding is greedy.

    The seed of a draw is a hash of the seed of the task, the id of the prompt and the number of the sample only.

    Raises:
        InputError: There are several samples at temperature 0, which would be identical texts.
    """
    if temperature == 0:
        if num_samples > 1:
            raise InputError(f"num_samples is {num_samples} at temperature 0: greedy texts do not differ; use 1")
        return None
    return {
        name: [Draw(n, int(digest([seed, name, n], 8), 16), temperature) for n in range(num_samples)]
        for name in prompt_ids
    }


def draws_of(prompt_id: str, draws: Draws | None) -> Sequence[Draw | None]:
    """Return the draws of one prompt. Without draws, return [None], which stands for greedy decoding."""
    return [None] if draws is None else draws[prompt_id]


#: Texts, and new tokens, of one task.
MAX_TEXTS, MAX_TASK_TOKENS = 1_000_000, 100_000_000
_REMEDY = "plan smaller tasks"


def require_affordable(num_texts: int, max_tokens: int) -> None:
    """Raise TooLargeError, with the number and the limit, for a task that would generate too much."""
    require_at_most("texts (prompts x directions x strengths x samples)", num_texts, MAX_TEXTS, _REMEDY)
    require_at_most("new tokens (texts x max_tokens)", num_texts * max_tokens, MAX_TASK_TOKENS, _REMEDY)
