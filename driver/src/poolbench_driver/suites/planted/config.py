"""The settings of a run of the planted suite."""

from typing import Any, Literal

from poolbench.config import BUDGETS, ProbesBudget, amounts, preset_of
from poolbench_corpora.places.passages import TEXTS, concept_id
from poolbench_driver.config import ConceptsConfig, RunConfig, as_concepts
from poolbench_driver.suites.planted.signals import SIGNALS, judged_strategies
from poolbench_driver.suites.poolbench.presets import preset_settings


class PlantedConfig(RunConfig):
    """Settings of a run of the planted suite. Model and texts are fixed: others would have other answers."""

    protocol: Literal["corrected"] = "corrected"
    """The published definitions expect nothing else of these texts."""
    budget: ProbesBudget = amounts(ProbesBudget, "demo")
    """How many passages are read, and how often they are resampled; result rows hold its name."""
    model: Literal["planted"] = "planted"
    """The model that is made for the texts."""
    strategies: tuple[str, ...] | None = tuple(judged_strategies())
    """Strategies that are checked; by default all that something is expected of."""

    @property
    def concept_ids(self) -> tuple[str, ...]:
        """Return the ids of the concepts of the planted texts."""
        return tuple(map(concept_id, TEXTS))

    @property
    def probing(self) -> ConceptsConfig:
        """Return the settings of the stages that pool and probe the planted passages."""
        layers = tuple(sorted({signal.block for signal in SIGNALS}))
        return as_concepts(self, concepts=self.concept_ids, layers=layers, metrics=("d1",))

    def hashed(self) -> dict[str, Any]:
        """Return the settings from which the hash of the configuration is computed.

        Earlier versions also had settings of steering and scorers, which nothing read. The values of preset and budget
        stay in the hash, so that runs keep their names.
        """
        name = preset_of(self.budget)
        preset = preset_settings(name, {"model": self.model})
        settings = {name: value for name, value in preset.items() if name.startswith(("steering", "scorer"))}
        openings = {"num_openings": BUDGETS[name].num_openings}  # the preset demo has had fewer since
        budget = {**preset["budget"], **openings, **self.budget.model_dump()}
        return as_concepts(self.probing, budget=budget, **settings).hashed()
