"""Search the best steering vector of a concept: runs that steer at one layer each, and one choice over all of them.

A search is a sequence of ordinary runs of the suite PoolBench, which share artifacts: the first one probes all
strategies at all layers (D1), the others steer at one layer each along the strategies that separate best there. So it
continues where it was interrupted, and further searches redo nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from poolbench.concepts import refuse_sensitive
from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.contracts.wire import UNSTEERED
from poolbench.errors import CellError, ConfigError, shown
from poolbench.grouping import grouped
from poolbench.statistics.response import ResponseGrid, single_grid
from poolbench.statuses import Status
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.find.baselines import baselines_of
from poolbench_driver.find.damage import Damage, DamageTask, UserTexts
from poolbench_driver.find.figures import card_measure
from poolbench_driver.find.held_out import held_out_texts
from poolbench_driver.find.judge import Judge
from poolbench_driver.find.limit import limit_of
from poolbench_driver.find.necessity import necessity_of
from poolbench_driver.find.robustness import Robustness
from poolbench_driver.find.selection import Candidate, Selection, select
from poolbench_driver.find.settings import FindSettings
from poolbench_driver.find.side_effects import SideEffects, checked_concepts
from poolbench_driver.job import Outcome
from poolbench_driver.loop.progress import Display
from poolbench_driver.measures.response import rules_of, tables_of_scores
from poolbench_driver.queries.endpoint import EndpointModel
from poolbench_driver.records import Run
from poolbench_driver.series import prepare_all, run_all
from poolbench_driver.stages.plan import ConceptsPlan
from poolbench_driver.vectors.card import CardMeasure, Strength, Vector, refuse_other_vector
from poolbench_driver.vectors.of_run import vector_of_run

#: Metric of the train passages by which strategies are screened; the test passages are only read.
SCREEN = "d1.auroc"


@dataclass(frozen=True)
class Search:
    """A search, with the contents of the files and the endpoint that its settings name.

    Attributes:
        settings: The settings.
        user_texts: Texts of the user that damage is measured on.
        judge: Rates the texts of the chosen vector.
        robustness: Paraphrases and other vectors that the vector is tried with; None leaves these figures out.
    """

    settings: FindSettings
    user_texts: UserTexts
    judge: Judge
    robustness: Robustness | None

    @classmethod
    def of(cls, settings: FindSettings, output: Path) -> Search:
        """Return the search of some settings.

        Args:
            settings: The settings.
            output: Folder of the vector, which keeps the ratings of an endpoint.

        Raises:
            ConfigError: The endpoint cannot be used.
            InputError: A file cannot be used. The message names the file and the line.
        """
        robustness = Robustness(settings.paraphrases, settings.others) if settings.robustness else None
        texts = UserTexts.read(settings.texts, settings.pairs)
        return cls(settings, texts, Judge(output, _endpoint(settings), settings.ratings), robustness)


def _endpoint(settings: FindSettings) -> EndpointModel | None:
    """Return the model that rates texts, or None if the settings name no judge."""
    if settings.judge is None:
        return None
    name = settings.judge_key_env
    key = os.environ.get(name) if name else None
    if name and not key:
        raise ConfigError(f"--judge-key-env {shown(name)}: this environment variable is not set")
    return EndpointModel(
        settings.judge, settings.judge_model, key, max_tokens=512, temperature=0.0, tries=2, timeout_s=60.0
    )


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        vector: The chosen vector, with its card.
        selection: The choice, with the figures of the other candidates.
        screened: Rows of `SCREEN` by layer and strategy: the value, and whether it was steered along.
        runs: Folders of the runs, the probing one first.
    """

    vector: Vector
    selection: Selection
    screened: Sequence[Row]
    runs: Sequence[Run] = field(default_factory=tuple)


def find(
    search: Search,
    session: Session,
    runs: Path,
    open_display: Callable[[], Display],
    say: Callable[[str], None],
) -> SearchResult:
    """Search, and return the chosen vector.

    Args:
        runs: Folder that the runs lie in.
        open_display: Opens a display of progress for each run.
        say: Receives a line of text for each step.

    Raises:
        ConfigError: A run is not possible, was cancelled, or has no figure.
        CellError: No candidate can be chosen, because its texts are not fluent or openings are too few.
        InputError: The folder of the judge holds another vector, the ratings of a file are of other texts, a paraphrase
            is of another opening, or a vector to add is of another model.
        RestrictedError: The concept is sensitive.
    """

    settings, concept = search.settings, search.settings.concept
    refuse_sensitive([concept])
    side_effects = checked_concepts(settings.side_effects or (), concept)

    def run(config: ConceptsConfig) -> tuple[ConceptsPlan, Run]:
        (job,) = prepare_all([config], session)
        assert isinstance(job.plan, ConceptsPlan)
        if search.robustness is not None:
            search.robustness.require_fit(job.plan.scope)
        return job.plan, _finished(next(run_all([job], runs, open_display)))

    say(f"probing {concept}: all strategies at all layers")
    _, probed = run(settings.probing())
    screened = list(screen(probed.rows("results", metric=SCREEN, concept=concept), settings.candidates))
    by_layer = grouped((row["layer"], row["strategy"]) for row in screened if row["steered"])
    if not by_layer:
        raise ConfigError(f"no strategy separates {concept}: {_why_null(screened)}")
    steered = dict[int, tuple[ConceptsPlan, Run]]()
    for number, (layer, strategies) in enumerate(by_layer.items(), start=1):
        say(f"steering at layer {layer} ({number} of {len(by_layer)}) along {', '.join(strategies)}")
        steered[layer] = run(settings.steering(layer, strategies))
    selection = _selected(concept, steered)
    best = selection.chosen
    plan, folder = steered[best.layer]
    vector = vector_of_run(folder, session.artifacts, concept, best.entrant, best.layer, best.construction)
    texts = held_out_texts(plan, folder, session.artifacts, concept, selection)
    refuse_other_vector(search.judge.folder, vector)
    further = search.judge.measures(texts, concept, rules_of(plan.scope.config), say)
    vector = replace(vector, card=vector.card.model_copy(update={"judge": search.judge.name}))
    say("measuring damage, side effects and the limit on texts that the choice never saw")
    effects = SideEffects(plan, folder.id, concept, best.entrant, texts)
    task = DamageTask(plan, folder.id, vector, best.construction, selection.strength)
    with closing(open_display()) as display:
        damage = task.measure(search.user_texts, session, display)
        limit = limit_of(task, settings.harm_levels, session, display)
        further += effects.measures(side_effects, session, display)
    folders = [probed, *(folder for _, folder in steered.values())]
    vector = _with_figures(vector, selection, damage, further)
    say(f"erasing {best.entrant} at layer {best.layer}: is it needed?")
    with closing(open_display()) as display:
        more = necessity_of(selection, plan, session, display, reads_later=settings.later_layers)
        if search.robustness is not None:
            say("does it hold elsewhere? behind context, in other words, at other temperatures")
            openings = {text.prompt_id: text.prompt for text in texts}
            more += search.robustness.measures(task, openings, search.user_texts, session, display)
        if settings.baselines:
            say("steering in other ways, for comparison")
            more += baselines_of(selection, plan, session, display)
    card = vector.card.model_copy(update={"measures": (*vector.card.measures, *more), "limit": limit})
    return SearchResult(replace(vector, card=card), selection, screened, folders)


def _selected(concept: str, runs: Mapping[int, tuple[ConceptsPlan, Run]]) -> Selection:
    """Return the choice among all candidates of some runs by layer. Candidates without a gain are excluded.

    Raises:
        CellError: No candidate can be chosen.
    """
    grids, excluded = dict[Candidate, ResponseGrid](), dict[Candidate, str]()
    for layer, (plan, folder) in runs.items():
        config = plan.scope.config
        for candidate in candidates_of(config, layer):
            try:
                grids[candidate] = grid_of(folder, concept, candidate)
            except CellError as error:
                excluded[candidate] = f"{error.status}: {error}"
    if not grids:
        raise CellError(Status.TOO_FEW, f"no candidate can be chosen: {next(iter(excluded.values()))}")
    selection = select(grids, rules_of(config))
    return replace(selection, excluded={**excluded, **selection.excluded})


def _finished(outcome: Outcome) -> Run:
    if outcome.empty or not outcome.tables:
        why = outcome.empty or f"it is {outcome.state}; the same command continues"
        raise ConfigError(f"run {outcome.folder.id} of the search has no figures: {why}")
    return outcome.folder


def screen(rows: Sequence[Row], num_strategies: int) -> Iterator[Row]:
    """Yield rows of layer, strategy, value, reason and whether to steer along the strategy, best first per layer."""
    for layer in sorted({row["layer"] for row in rows}):
        of_layer = [row for row in rows if row["layer"] == layer]
        ordered = sorted(of_layer, key=lambda row: (row["value"] is None, -(row["value"] or 0.0), row["strategy"]))
        for place, row in enumerate(ordered):
            is_steered = row["value"] is not None and place < num_strategies
            yield {name: row[name] for name in ("layer", "strategy", "value", "reason")} | {"steered": is_steered}


def _why_null(screened: Sequence[Row]) -> str:
    return next((row["reason"] for row in screened if row["reason"]), "no layer was probed")


def candidates_of(config: ConceptsConfig, layer: int) -> Iterator[Candidate]:
    """Yield the directions that a run steers along at its layer."""
    for construction in config.steering.directions:
        for strategy in config.strategies or ():
            yield Candidate(layer, config.steering.entrant(strategy, construction), strategy, construction)


def grid_of(folder: Run, concept: str, candidate: Candidate) -> ResponseGrid:
    """Return the scores of a candidate's texts by opening and strength.

    Raises:
        CellError: The run has no gain of the candidate, for example because the concept's scorer failed its gate.
    """
    for gain in folder.rows("results", metric="d2.best_gain", concept=concept, strategy=candidate.entrant):
        if gain["value"] is None:
            raise CellError(gain["status"], gain["reason"] or "the run has no gain of it")
    steered, unsteered = (
        tables_of_scores(folder.rows("text_scores", name=name, **of))
        for name, of in ((candidate.entrant, {"concept": concept}), (UNSTEERED, {}))
    )
    return single_grid(steered, unsteered, concept, folder.config.seed)


def _with_figures(vector: Vector, selection: Selection, damage: Damage, further: Sequence[CardMeasure] = ()) -> Vector:
    """Return a vector whose card has all figures of a search, and the strength that was chosen."""
    num = selection.num_openings
    by_strength = ((Measure.of("find.gain_by_strength", at.gain, at.interval, n=num), at) for at in selection.curve)
    figures = [
        card_measure(Measure.of("find.gain", selection.gain, selection.interval, n=num)),
        card_measure(Measure.of("find.share_wrong_way", selection.wrong_way, selection.wrong_way_interval, n=num)),
        *(card_measure(measure, at.strength) for measure, at in by_strength),
        CardMeasure(name="find.naive_gain", value=selection.naive),
        CardMeasure(name="find.optimism", value=selection.optimism),
        CardMeasure(name="find.num_candidates", value=float(len(selection.gains)), n=len(selection.gains)),
        CardMeasure(name="find.num_tied", value=float(len(selection.tied)), n=len(selection.tied)),
    ]
    card = vector.card
    low, safe_high, reason = card.strength.safe_low, card.strength.safe_high, card.strength.reason
    if safe_high is not None:
        safe_high, reason = min(safe_high, safe_high if damage.safe_high is None else damage.safe_high), None
    strength = Strength(recommended=selection.strength, safe_low=low, safe_high=safe_high, reason=reason)
    measures = (*figures, *further, *damage.measures, *card.measures)
    card = card.model_copy(update={"strength": strength, "measures": measures, "lenses": damage.lenses})
    return replace(vector, card=card)
