"""Parameters that steps of several services share."""

from pydantic import Field

from poolbench.config.base import StrictModel
from poolbench.config.models import ModelRef, resolve_model
from poolbench.contracts.bounds import Dtype, ModelName, Name, Revision, StrategyParams

MAX_STRATEGIES = 200
"""Strategies of one task or request."""


class NoParams(StrictModel):
    """The parameters of a step that has none."""


class ModelParams(StrictModel):
    """A language model."""

    model: ModelName  # preset id, folder or Hugging Face id
    model_revision: Revision | None = None  # hugging Face revision; `local-<hash>` for a folder
    dtype: Dtype | None = None  # type of weights and activations

    def reference(self) -> ModelRef:
        """Return the model, resolved to a folder or hub id and a revision."""
        return resolve_model(self.model, revision=self.model_revision, dtype=self.dtype)


class StrategyParam(StrictModel):
    """A pooling strategy and the parameters that differ from its defaults."""

    id: Name
    params: StrategyParams = Field(default_factory=dict)
