"""Parameters that steps of several services share."""

from typing import Any, Literal

from pydantic import Field

from poolbench.config.base import StrictModel
from poolbench.config.models import ModelRef, resolve_model
from poolbench.contracts.bounds import SINK_RATIO, Dtype, Flag, ModelName, Name, Revision, SinkRatio, StrategyParams
from poolbench.errors import ConfigError
from poolbench.pooling.sinks import SinkRule

MAX_STRATEGIES = 200
"""Strategies of one task or request."""


class NoParams(StrictModel):
    """The parameters of a step that has none."""


class ModelParams(StrictModel):
    """A language model."""

    model: ModelName  # preset id, folder or Hugging Face id
    model_revision: Revision | None = None  # hugging Face revision; `local-<hash>` for a folder
    dtype: Dtype | None = None  # type of weights and activations
    add_bos: Flag = False  # whether to begin every text with the BOS that the tokenizer defines and does not add

    @property
    def variant(self) -> str:
        """Return what identifies the model in `Work.variant`."""
        return f"{self.model}@{self.model_revision}/{self.dtype}"

    def reference(self) -> ModelRef:
        """Return the model, resolved to a folder or hub id and a revision."""
        return resolve_model(self.model, revision=self.model_revision, dtype=self.dtype)


def bos_to_add(tokenizer: Any) -> int:
    """Return the id of the BOS that `add_bos` asks for; raise ConfigError if the tokenizer defines none."""
    if tokenizer.bos_token_id is None:
        raise ConfigError("add_bos is set, but the tokenizer of this model defines no BOS; leave add_bos unset")
    return int(tokenizer.bos_token_id)


class SinkParams(StrictModel):
    """What happens to attention sinks."""

    sinks: Literal["exclude", "include"] = "exclude"  # `exclude` leaves them out, except of P1, P2 and P3
    sink_ratio: SinkRatio = SINK_RATIO  # norm of a sink, in medians of its passage

    @property
    def sink_rule(self) -> SinkRule:
        """Return the same as pooling takes it."""
        return SinkRule(self.sink_ratio, self.sinks == "exclude")


class StrategyParam(StrictModel):
    """A pooling strategy and the parameters that differ from its defaults."""

    id: Name
    params: StrategyParams = Field(default_factory=dict)
