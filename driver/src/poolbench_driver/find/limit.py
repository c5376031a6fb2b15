"""Up to which strength a vector stays below named levels of harm, read on openings that chose nothing.

These are the held-out half of the search's openings, and the openings of the set that the search did not use. All of
them are steered at every strength, which the runs of a search do for the other half alone.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError
from poolbench.statistics.response import ResponseGrid, SteeredTables, single_grid, split_openings
from poolbench.texts import load_openings
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.corpora.sources import stored_rows
from poolbench_driver.find.damage import STEERED, DamageTask
from poolbench_driver.find.scoring import send
from poolbench_driver.loop.progress import Display
from poolbench_driver.stages.stage import Draft, Stage
from poolbench_driver.stages.steering import plan_scores_of
from poolbench_driver.statistics.limits import HarmLevels, strength_limit
from poolbench_driver.vectors.card import Limit, LimitTest


def limit_of(task: DamageTask, levels: HarmLevels, session: Session, display: Display) -> Limit:
    """Send the tasks that are not committed, and return the limit of a vector, or a null with its reason."""
    try:
        grid = _grid(task, session, display)
    except CellError as error:
        return Limit(**asdict(levels), openings=0, reason=str(error)[:1000])
    # A text without tokens has no perplexity: the grid has 0 there.
    nll_PS = np.where(grid.num_tokens > 0, grid.nll, np.nan)
    rises_PS, log_ratios_PS = (values[:, 1:] - values[:, :1] for values in (grid.score, nll_PS))
    strength, tests, reason = strength_limit(grid.strengths[1:], rises_PS, log_ratios_PS, levels)
    return Limit(
        **asdict(levels),
        strength=strength,
        openings=len(grid.openings),
        tests=tuple(LimitTest(**test._asdict()) for test in tests),
        reason=reason,
    )


def openings_of(config: ConceptsConfig) -> pa.Table:
    """Return the openings of a run's set that no strength or vector is chosen on."""
    budget = config.budget
    used = load_openings(budget.opening_set, budget.num_openings)["prompt_id"].to_pylist()
    chose, _ = split_openings(used, config.seed)
    openings = load_openings(budget.opening_set)
    return openings.filter(pc.invert(pc.is_in(openings["prompt_id"], pa.array(chose, pa.string()))))


def plan_limit(draft: Draft, task: DamageTask) -> dict[str, tuple[str, str, str]]:
    """Plan the steered and the unsteered texts. Return the keys of the texts, scores and likelihoods by name."""
    config, (concept,) = task.plan.scope.config, task.plan.vectors.concepts
    openings = draft.add_local(stored_rows("openings that chose nothing", openings_of(config), "openings"))
    texts = task.plan_texts(draft, openings, config.budget.strengths)
    text_keys = {name: keys.texts for name, keys in texts.items()}
    scores = plan_scores_of(draft, task.plan.steered.scorers, [concept], text_keys)
    return {name: (keys.texts, scores[name], keys.fluency) for name, keys in texts.items()}


def _grid(task: DamageTask, session: Session, display: Display) -> ResponseGrid:
    """Return the scores and likelihoods of the openings by strength. Raise CellError if they cannot be had."""
    plan, draft = task.plan, Draft()
    keys = plan_limit(draft, task)
    source = send(plan, session, display, Stage(draft.work), run_id=task.run_id)
    steered, unsteered = (SteeredTables(*map(source.required, keys[name])) for name in (STEERED, UNSTEERED))
    (concept,) = plan.vectors.concepts
    return single_grid(steered, unsteered, concept, plan.scope.config.seed)
