"""The cost of probing counts what is fitted."""

from poolbench.steps.prober import TaskParams
from poolbench_prober import cost
from poolbench_prober.probing.mlp import MOST_EPOCHS


def test_its_cost_counts_the_epochs_and_the_units() -> None:
    linear = cost.of_task(1000, 64, 2, TaskParams(compression=False))
    deep = cost.of_task(1000, 64, 2, TaskParams(hidden=20))
    assert (linear.probes, deep.probes) == (2 * 6, 20 * 2 * MOST_EPOCHS)
