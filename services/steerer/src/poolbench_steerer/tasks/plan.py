"""Which texts a task asks for: pure functions, no engine, no store, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from poolbench.contracts.keys import digest
from poolbench.contracts.tables import vector_matrix
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import InputError, LayerError
from poolbench_steerer.plugin.bank import vector_id
from poolbench_steerer.tasks.draws import Draw, Draws, draws_of


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and token ids."""

    prompt_id: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Direction:
    """A steering direction under the name its texts will carry."""

    key: str
    vector: np.ndarray
    source: str = ""  # key of the artifact that holds it

    @property
    def vector_id(self) -> str:
        """Hash of the vector, as receipts carry it."""
        return vector_id(self.vector)


@dataclass(frozen=True)
class PlannedText:
    """One text to generate: prompt, direction and strength; greedy without a draw."""

    prompt: Prompt
    direction_key: str
    strength: float
    alpha: float
    layer: int | None  # None: not steered, and no layer in question
    vector_id: str | None = None
    draw: Draw | None = None
    source: str = ""  # key of the direction's artifact

    @property
    def text_id(self) -> str:
        """Return the id of the text: a hash of what was asked for.

        The bits of vector and alpha stay out. They change when an artifact is computed again, and then the fluency and
        scores that are already committed would name other texts.
        """
        steering = [self.source, self.direction_key, self.strength, self.layer]
        sampling = [] if self.draw is None else [asdict(self.draw)]
        return digest([self.prompt.prompt_id, self.prompt.text, *steering, *sampling], 20)


def choose_directions(
    name: str, table: pa.Table, wanted: Sequence[str] | Literal["all"], source: str = ""
) -> tuple[list[Direction], dict[str, str]]:
    """The usable directions of an artifact, and why others are not.

    Raises:
        InputError: When a wanted direction is not in the table.
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
    """Mean residual norm at a layer. Raises LayerError when the layer was not calibrated."""
    layers = calibration.column("layer").to_pylist()
    if layer not in layers:
        raise LayerError(f"the calibration has no layer {layer}; it has {', '.join(map(str, layers))}")
    return float(calibration.column("mean_residual_norm")[layers.index(layer)].as_py())


def plan_texts(
    prompts: Sequence[Prompt],
    directions: Iterable[Direction],
    strengths: Sequence[float],
    layer: int,
    unit: float,
    draws: Draws | None = None,
) -> list[PlannedText]:
    """Every direction at every strength with every prompt and draw; alpha = strength * unit."""
    return [
        PlannedText(
            prompt, direction.key, strength, strength * unit, layer, direction.vector_id, draw, direction.source
        )
        for direction in directions
        for strength in strengths
        for prompt in prompts
        for draw in draws_of(prompt.prompt_id, draws)
    ]


def plan_unsteered(prompts: Sequence[Prompt], layer: int | None, draws: Draws | None = None) -> list[PlannedText]:
    """The unsteered texts of each prompt: one, or one a draw."""
    return [
        PlannedText(prompt, UNSTEERED, 0.0, 0.0, layer, draw=draw)
        for prompt in prompts
        for draw in draws_of(prompt.prompt_id, draws)
    ]


def choose_passages(passages: pa.Table, num_passages: int) -> list[dict[str, Any]]:
    """As many positive as negative passages, at most ``num_passages`` in all, by passage id."""
    rows = sorted(passages.select(["passage_id", "label", "text"]).to_pylist(), key=lambda row: row["passage_id"])
    by_label = [[row for row in rows if row["label"] == label] for label in (1, 0)]
    if not all(by_label):
        raise InputError("continuations need positive and negative passages; one class is empty")
    per_class = max(1, min(num_passages // 2, *map(len, by_label)))
    return [row for group in by_label for row in group[:per_class]]


def first_half(token_ids: Sequence[int], limit: int | None = None) -> tuple[int, ...]:
    """The first half of a passage, at most ``limit`` tokens and at least one."""
    half = len(token_ids) // 2
    return tuple(token_ids[: max(1, half if limit is None else min(limit, half))])
