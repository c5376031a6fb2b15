"""What a request asks for: which vector, at which layer, how strongly, from which position on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from poolbench.contracts.keys import digest
from poolbench.errors import InputError

Positions = Literal["generated", "all"]
MAX_ALPHA = 1e8  # far beyond any use; larger ones overflow in half precision and show as NaN


@dataclass(frozen=True)
class Edit:
    """Adds ``alpha`` times a registered unit vector to the residual stream after block ``layer``."""

    vector_id: str
    layer: int
    alpha: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.alpha) or abs(self.alpha) > MAX_ALPHA:
            raise InputError(
                f"steering coefficient must be finite and at most {MAX_ALPHA:.0e} in size, got {self.alpha}; "
                "useful ones are below the layer's mean residual norm"
            )


@dataclass(frozen=True)
class Steering:
    """The edits of one request and the positions they apply to.

    Attributes:
        edits: At most one edit a layer.
        positions: ``generated`` starts at the last prompt position, so that the first new token is already
            steered; ``all`` steers every prompt position too.
    """

    edits: tuple[Edit, ...]
    positions: Positions = "generated"

    def __post_init__(self) -> None:
        layers = [edit.layer for edit in self.edits]
        if not layers or len(set(layers)) != len(layers):
            raise InputError(f"steering needs one or more edits at distinct layers, got layers {layers}")

    @property
    def live_layers(self) -> tuple[int, ...]:
        """Layers whose edit changes anything (coefficient other than 0)."""
        return tuple(edit.layer for edit in self.edits if edit.alpha != 0.0)

    def first_position(self, num_prompt_tokens: int) -> int:
        """The first position that is steered."""
        return 0 if self.positions == "all" else num_prompt_tokens - 1

    def num_positions(self, num_prompt_tokens: int, num_new_tokens: int) -> int:
        """How many positions a finished request must have steered.

        The last sampled token is never fed back, so ``num_new_tokens`` tokens come from the last prompt
        position and ``num_new_tokens - 1`` later ones.
        """
        return num_prompt_tokens + num_new_tokens - 1 - self.first_position(num_prompt_tokens)

    def cache_salt(self) -> str:
        """Salt of the prefix cache: states are shared only between requests steered identically."""
        edits = sorted([edit.layer, edit.vector_id, edit.alpha.hex()] for edit in self.edits)
        return digest({"edits": edits, "positions": self.positions})

    def wire(self, row: int, slots: dict[str, int], num_prompt_tokens: int) -> dict[str, Any]:
        """The instructions that travel to the worker in ``SamplingParams.extra_args``."""
        edits = [[edit.layer, slots[edit.vector_id], edit.alpha] for edit in self.edits]
        return {"row": row, "start": self.first_position(num_prompt_tokens), "edits": edits}
