"""Base class of all sections of a configuration."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A configuration section: unknown keys are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
