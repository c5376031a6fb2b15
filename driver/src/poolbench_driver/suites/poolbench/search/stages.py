"""Run a further stage of a search beside the run that it belongs to, and read measures of a card from it."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.errors import CellError
from poolbench_driver.cluster.session import Session
from poolbench_driver.contract.source import RowSource
from poolbench_driver.loop import RunLoop
from poolbench_driver.loop.progress import Display
from poolbench_driver.stages.stage import Plan, Stage
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
from poolbench_driver.suites.poolbench.search.figures import card_measure
from poolbench_driver.vectors.card import CardMeasure, Vector

#: Reads the measures of a stage that has run: committed artifacts and failures, the concept's scorer, and settings.
Reader = Callable[[RowSource, GatedScorer, SteeringRules], Iterable[CardMeasure]]


def with_stage(
    vector: Vector,
    plan: PoolBenchPlan,
    stage: Stage,
    read: Reader,
    first: str,
    session: Session,
    open_display: Callable[[], Display],
) -> Vector:
    """Return a vector whose card has the measures of a stage, by tasks that a repeated search does not send again.

    Args:
        plan: The run that has steered along the vector.
        first: Name of the measure that is null where the stage cannot be run.
    """
    assert plan.steering is not None
    config = plan.scope.config
    rules = SteeringRules(num_bootstrap=config.budget.num_bootstrap, seed=config.seed)
    whole, display = Plan.of(plan.config, plan.facts, Stage(plan.work), stage), open_display()
    ((concept, keys),) = ((name, plan.steering.scorers.concepts[name]) for name in plan.vectors.concepts)
    try:
        failures = RunLoop(whole, session.artifacts, session.queue, session.leases, display).run()
        source = RowSource(session.artifacts, failures, whole.producers)
        scorer = GatedScorer.from_gate(concept, source.required(keys.gate).to_pylist())
        measures = list(read(source, scorer, rules))
    except CellError as error:  # what the driver itself makes could not be made
        measures = [card_measure(Measure.failed(first, error))]
    finally:
        display.close()
    card = vector.card.model_copy(update={"measures": (*vector.card.measures, *measures)})
    return replace(vector, card=card)
