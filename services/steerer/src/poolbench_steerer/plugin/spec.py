"""The steering of a request: edits of the residual stream, their layers and positions."""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from poolbench.contracts.keys import digest
from poolbench.errors import InputError

Operation = Literal["add", "add_preserving_norm", "clamp", "erase"]
Positions = Literal["generated", "all", "prompt"] | int
MAX_READINGS = 4  # directions that one request reads along at once
MAX_ALPHA = 1e8  # far beyond any use; `bounds` limits coefficient times vector

#: Codes of the operations on the device; 0 means no edit.
OPERATION_CODES: dict[Operation, int] = {"add": 1, "add_preserving_norm": 2, "clamp": 3, "erase": 4}
_STAGES: dict[Operation, int] = {"add": 0, "add_preserving_norm": 0, "clamp": 1, "erase": 2}
_NAMED_POSITIONS = ("generated", "all", "prompt")


@dataclass(frozen=True)
class Edit:
    """One change of the residual stream h after block `layer` by a registered vector v, u = v / |v|.

    Attributes:
        operation: `add`: h + alpha v. `add_preserving_norm`: (h + alpha v) |h| / |h + alpha v|.
            `clamp`: h + (alpha - h.u) u, so that the projection on u is alpha. `erase`: h - alpha (h.u) u,
            so that 1 removes the projection.
    """

    vector_id: str
    layer: int
    alpha: float
    operation: Operation = "add"

    def __post_init__(self) -> None:
        if self.operation not in OPERATION_CODES:
            raise InputError(f"unknown steering operation {self.operation!r}; known: {', '.join(OPERATION_CODES)}")
        if not math.isfinite(self.alpha) or abs(self.alpha) > MAX_ALPHA:
            raise InputError(
                f"steering coefficient must be finite and at most {MAX_ALPHA:.0e} in size, got {self.alpha}; "
                "useful ones are below the layer's median residual norm"
            )

    @property
    def live(self) -> bool:
        """Return whether the edit can change a state. With coefficient 0, only a clamp can."""
        return self.alpha != 0.0 or self.operation == "clamp"

    @property
    def additive(self) -> bool:
        """Return whether the edit changes every position. A projection may already be at its target."""
        return _STAGES[self.operation] == 0


@dataclass(frozen=True)
class Reading:
    """A direction to read as v.h / |v| + offset, where h is the residual stream after block `layer` and its edits."""

    vector_id: str
    layer: int
    offset: float = 0.0


@dataclass(frozen=True)
class Pooling:
    """Strategies that pool a prompt and its answer, each from the residual stream after block `layer` and its edits."""

    layer: int
    strategies: tuple[str, ...]


@dataclass(frozen=True)
class Condition:
    """The edits of a request apply at a position if v.h / |v| is above, or below, a threshold there.

    h is the residual stream after block `layer`, before the edits of the request at that layer.
    """

    vector_id: str
    layer: int
    threshold: float
    above: bool = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold) or abs(self.threshold) > MAX_ALPHA:
            raise InputError(f"the threshold of a condition must be finite and at most {MAX_ALPHA:.0e} in size")


@dataclass(frozen=True)
class Steering:
    """The edits of one request and the positions they apply to.

    Attributes:
        edits: At one layer additive edits are applied first, then clamps, then erasures, each group in the
            order given.
        positions: `generated`: the last prompt position, so that the first new token is steered, and all
            later ones. `all`: every position. `prompt`: every prompt position, the last one included,
            and none later. A number n: position n (the first token has 0) and all later ones.
        where: A condition on each of these positions. None stands for no condition.
    """

    edits: tuple[Edit, ...]
    positions: Positions = "generated"
    where: Condition | None = None

    def __post_init__(self) -> None:
        if not self.edits:
            raise InputError("steering needs one or more edits")
        keys = [(edit.layer, edit.vector_id, edit.operation) for edit in self.edits]
        if len(set(keys)) != len(keys):
            raise InputError("a vector can stand once per layer and operation; add up its coefficients")
        counted = isinstance(self.positions, int) and not isinstance(self.positions, bool)
        if not (self.positions in _NAMED_POSITIONS or (counted and int(self.positions) >= 0)):
            names = ", ".join(_NAMED_POSITIONS)
            raise InputError(f"positions must be {names} or a number from 0 on, got {self.positions!r}")
        first = min(edit.layer for edit in self.edits)
        if self.where is not None and self.where.layer > first:
            raise InputError(
                f"the condition is read after layer {self.where.layer}, and the edit at layer {first} comes before "
                "that; read it at the layer of the first edit or earlier"
            )

    @cached_property
    def applied(self) -> tuple[Edit, ...]:
        """Return the edits in the order in which they act."""
        return tuple(sorted(self.edits, key=lambda edit: (edit.layer, _STAGES[edit.operation])))

    @cached_property
    def live_by_layer(self) -> dict[int, tuple[Edit, ...]]:
        """Return the live edits by layer, in the order in which they act."""
        live = [edit for edit in self.applied if edit.live]
        return {layer: tuple(e for e in live if e.layer == layer) for layer in dict.fromkeys(e.layer for e in live)}

    @property
    def vector_ids(self) -> list[str]:
        """Return the vectors that the edits and the condition use."""
        return [*(edit.vector_id for edit in self.edits), *([self.where.vector_id] if self.where is not None else ())]

    @property
    def max_edits_per_layer(self) -> int:
        """Return the largest number of edits at one layer."""
        layers = [edit.layer for edit in self.edits]
        return max(layers.count(layer) for layer in layers)

    def span(self, num_prompt_tokens: int) -> tuple[int, int | None]:
        """Return the first steered position, and the first later position that is not steered, or None."""
        if isinstance(self.positions, int):
            return self.positions, None
        if self.positions == "prompt":
            return 0, num_prompt_tokens
        return (0 if self.positions == "all" else num_prompt_tokens - 1), None

    def first_position(self, num_prompt_tokens: int) -> int:
        """Return the first position that is steered."""
        return self.span(num_prompt_tokens)[0]

    def steers_prompt(self, num_prompt_tokens: int) -> bool:
        """Return whether a prompt position before the last is steered.

        Such a position could come from the prefix cache (the last position never does). Its value would be right, but
        the receipt of this request could not prove this, because another request was steered.
        """
        return self.first_position(num_prompt_tokens) < num_prompt_tokens - 1

    def num_positions(self, num_prompt_tokens: int, num_new_tokens: int) -> int:
        """Return the number of positions that a finished request must have steered. The last token is not fed back."""
        start, stop = self.span(num_prompt_tokens)
        computed = num_prompt_tokens + num_new_tokens - 1
        return max(0, min(computed, computed if stop is None else stop) - start)

    def cache_salt(self, num_prompt_tokens: int) -> str:
        """Return the salt of the prefix cache, so that only identically steered requests share states.

        The salt depends on the span, because tokens can be a steered answer in one request and an unsteered prompt in
        the next request.
        """
        return _salt(self.applied, self.span(num_prompt_tokens), self.where)

    def wire(self, row: int, slots: dict[str, int], num_prompt_tokens: int) -> dict[str, Any]:
        """Return the instructions for the worker in `SamplingParams.extra_args`."""
        start, stop = self.span(num_prompt_tokens)
        edits = [
            [edit.layer, slots[edit.vector_id], OPERATION_CODES[edit.operation], edit.alpha]
            for edit in self.applied
            if edit.live
        ]
        wire: dict[str, Any] = {"row": row, "start": start, "stop": stop, "edits": edits}
        if (where := self.where) is not None:
            wire["where"] = [where.layer, slots[where.vector_id], 1.0 if where.above else -1.0, where.threshold]
        return wire


@lru_cache(maxsize=4096)  # thousands of texts share few settings
def _salt(edits: tuple[Edit, ...], span: tuple[int, int | None], where: Condition | None) -> str:
    listed = [[edit.layer, edit.vector_id, edit.operation, edit.alpha.hex()] for edit in edits]
    condition = where and [where.layer, where.vector_id, where.threshold.hex(), where.above]
    return digest({"edits": listed, "span": list(span), "where": condition})
