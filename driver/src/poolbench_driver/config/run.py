"""The settings of one run that every suite has. Settings of the deployment come from the environment instead."""

from typing import Any, Literal

from poolbench.config import NamedBudget, StrictModel, amounts
from poolbench.contracts.bounds import Seed
from poolbench.contracts.keys import digest

#: What is measured where nothing names a suite.
DEFAULT_SUITE = "poolbench"

#: Settings that say how many passages of concepts are read.
SIZES_OF_PASSAGES = ("budget.num_train", "budget.num_test")


class RunConfig(StrictModel):
    """One run. What is not named here, or in the settings of its suite, has no influence on results."""

    suite: str = DEFAULT_SUITE
    """What is measured; its settings are a subclass of these."""
    protocol: Literal["corrected", "published"] = "corrected"
    """`published` also makes rows by the reference's own definitions, beside the corrected ones, in a table of their
    own that is never ranked. The run then begins with the reference's way to measure.
    """
    budget: NamedBudget = NamedBudget(name="demo")
    """How much is measured; result rows hold its name. Each suite has the amounts that it reads."""
    model: str = "demo"
    """Preset id, folder, Hugging Face id, or `import:NAME`."""
    model_revision: str | None = None
    """Revision of a Hugging Face model."""
    dtype: str | None = None
    """Number type of the model's weights, such as `bfloat16`; by default what the model says."""
    seed: Seed = 0
    """Seed of everything that is drawn at random."""

    @classmethod
    def amounts(cls, preset: str) -> dict[str, Any]:
        """Return the amounts of a preset that the suite reads."""
        return amounts(type(cls.model_fields["budget"].default), preset).model_dump(mode="json")

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the concepts that it names, which are none in most suites."""
        return ()

    @property
    def unread(self) -> tuple[str, ...]:
        """Return the settings that this run has no use for, although others of its suite have."""
        return ()

    @property
    def data_name(self) -> str:
        """Return what is measured in one word, for the name of the run."""
        return self.suite

    def config_hash(self) -> str:
        """Return the hash of the whole configuration."""
        return digest(self.hashed(), 16)

    def hashed(self) -> dict[str, Any]:
        """Return what the hash is made of: fields that came later are left out at their default, so old hashes stay."""
        return self.model_dump(mode="json")
