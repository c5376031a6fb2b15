"""What a search gives its runs, and settings that do not fit together."""

import pytest

from poolbench.errors import ConfigError
from poolbench_driver.find.settings import FindSettings


@pytest.mark.parametrize(("preset", "num_openings"), [("demo", 20), ("small", 8)])
def test_a_search_has_all_openings_of_its_budget(preset: str, num_openings: int) -> None:
    """The run of the demo has fewer."""
    assert FindSettings(concept="contrast", budget=preset).probing().budget.num_openings == num_openings
    with pytest.raises(ConfigError, match="tiny"):
        FindSettings(concept="contrast", budget="tiny").probing()


def test_settings_reach_the_runs_but_not_what_the_search_decides() -> None:
    search = FindSettings(concept="contrast", sets=("budget.num_openings=6", "steering.temperature=0.3"))
    config = search.steering(1, ["A1_mean"])
    assert (config.budget.num_openings, config.steering.temperature, config.concepts) == (6, 0.3, ("contrast",))
    with pytest.raises(ConfigError, match="--set concepts: a search decides this"):
        FindSettings(concept="contrast", sets=("concepts=[causation]",))
