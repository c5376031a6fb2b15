"""The settings of one run that every suite has. Settings of the deployment come from the environment instead."""

from typing import Any, Literal

from poolbench.config import BUDGETS, Budget, StrictModel
from poolbench.contracts.bounds import Seed
from poolbench.contracts.keys import digest


class RunConfig(StrictModel):
    """One run. What is not named here, or in the settings of its suite, has no influence on results.

    Attributes:
        suite: What is measured; its settings are a subclass of these.
        protocol: `published` also makes rows by the reference's own definitions, beside the corrected ones, in a table
            of their own that is never ranked. The run then begins with the reference's way to measure.
        budget: How much is measured; result rows hold its name.
        model: Preset id, folder, Hugging Face id, or `import:NAME`.
        model_revision: Revision of a Hugging Face model.
        seed: Seed of everything that is drawn at random.
    """

    suite: str = "poolbench"
    protocol: Literal["corrected", "published"] = "corrected"
    budget: Budget = BUDGETS["demo"]
    model: str = "demo"
    model_revision: str | None = None
    dtype: str | None = None
    seed: Seed = 0

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the concepts that it names, which are none in most suites."""
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
