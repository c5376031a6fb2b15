"""Base class of all sections of a configuration."""

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A configuration section: unknown keys are errors, values never change.

    A string below a field is its description, which `run --suite NAME --help` shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
