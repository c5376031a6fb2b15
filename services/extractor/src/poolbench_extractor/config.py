"""What the extractor's tasks and requests carry, and how a deployment sizes its batches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from poolbench.config import ModelRef, StrictModel, resolve_model
from poolbench.pooling.batch import Request


class StrategyParam(StrictModel):
    """A strategy with the parameters it is asked for."""

    id: str
    params: dict[str, Any] = Field(default_factory=dict)


class ModelParams(StrictModel):
    """The model and how its input is read; part of every task.

    Attributes:
        model: Preset id, folder or Hugging Face id.
        dtype: Weights and activations: ``float32``, ``bfloat16`` or ``float16``.
        include_bos: Whether a BOS counts as a real token.
        max_length: Passages with more tokens fail, besides those longer than the model's window.
    """

    model: str
    model_revision: str | None = None
    dtype: str | None = None
    include_bos: bool = False
    max_length: int | None = Field(default=None, gt=0)

    def reference(self) -> ModelRef:
        """The model, resolved to a folder or hub id and a revision."""
        return resolve_model(self.model, revision=self.model_revision, dtype=self.dtype)


class CalibrateParams(ModelParams):
    """Parameters of ``extractor.calibrate``."""

    layers: list[int] = Field(min_length=1)


class ExtractParams(CalibrateParams):
    """Parameters of ``extractor.extract``."""

    strategies: list[StrategyParam] = Field(default_factory=list)
    keep_activations: bool = False

    def requests(self) -> dict[str, Request]:
        """The strategies by id, checked against the registry."""
        return {item.id: Request.of(item.id, item.params) for item in self.strategies}


class EmbedRequest(ModelParams):
    """Body of ``POST /embed``."""

    texts: list[str] = Field(min_length=1, max_length=1024)
    model: str = "demo"
    strategy: str = "A1_mean"
    params: dict[str, Any] = Field(default_factory=dict)
    layer: int = -1


@dataclass(frozen=True)
class Deployment:
    """Facts of where the extractor runs.

    Attributes:
        device: ``cpu``, ``cuda`` or ``auto`` (one model over all GPUs); None takes a GPU if there is one.
        trust_remote_code: Whether code of a model repository may run here.
    """

    device: str | None = None
    trust_remote_code: bool = False

    @classmethod
    def from_environment(cls) -> Deployment:
        """Reads POOLBENCH_EXTRACTOR_DEVICE and POOLBENCH_TRUST_REMOTE_CODE (1 turns it on)."""
        return cls(
            device=os.environ.get("POOLBENCH_EXTRACTOR_DEVICE") or None,
            trust_remote_code=os.environ.get("POOLBENCH_TRUST_REMOTE_CODE") == "1",
        )


class BatchLimits(StrictModel):
    """How large a batch may get; changes speed and memory, never results.

    Attributes:
        max_tokens: Positions of a batch, padding included.
        max_loss_tokens: The same where a loss goes back through the model, and activations must be kept for it.
        max_passages: Passages of a batch.
        padding_side: ``right`` lets the model use its fastest attention; ``left`` is for comparisons.
    """

    max_tokens: int = Field(default=8192, gt=0)
    max_loss_tokens: int = Field(default=4096, gt=0)
    max_passages: int = Field(default=64, gt=0)
    padding_side: str = Field(default="right", pattern="^(left|right)$")
