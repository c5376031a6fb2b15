"""What the tables of a run say: its entrants, what is wrong with the data, and which pooling carries what."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from poolbench.config import EMBEDDING, FINAL
from poolbench.contracts import Row
from poolbench.errors import ConfigError
from poolbench.grouping import grouped
from poolbench_corpora.probing import suite_sets
from poolbench_driver.config import RANDOM_WEIGHTS
from poolbench_driver.contract.page import Cell
from poolbench_driver.pages.boards.cell_table import require_one_quantity
from poolbench_driver.pages.plain import entrant_path, figure, figures_by, number
from poolbench_driver.pages.text import listed
from poolbench_driver.statistics.ranks import best_first
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.metrics import RATE, SCORE
from poolbench_driver.suites.holmes.rates import compared, discriminability_by_set, published_rates, winning_rates

if TYPE_CHECKING:
    from poolbench_driver.contract.suite import FinishedRun

#: Columns of `entrants.parquet` that an entrant has.
_IDENTITY = ("entrant", "strategy", "layer_name", "control")
#: Level of McNemar's tests, after Holm's correction over the sets.
LEVEL = 0.05


@dataclass(frozen=True)
class Entrant:
    """A model, strategy and layer, with winning rates and other figures by metric, and with scores by set."""

    name: str
    strategy: str | None  # None, and so is the layer, for vectors that no model of the run makes
    layer: str | None  # as the name has it
    control: str | None  # name of the control; None for none
    rates: Mapping[str, Row]
    scores: Mapping[str, Row]
    others: Mapping[str, Sequence[Row]]
    seeds: Mapping[str, Sequence[float]] = field(default_factory=dict)  # the scores of each set under several seeds
    model: str | None = None  # None for vectors that no model of the run makes
    architecture: str | None = None  # `encoder` or `decoder`; None if unknown
    num_parameters: int | None = None  # of the model; None if unknown

    def mean(self, metric: str) -> Cell:
        """Return the mean of a figure over the sets that have this figure."""
        values = [row["value"] for row in self.others.get(metric, ()) if row["value"] is not None]
        return replace(number(fmean(values)), opens=entrant_path(self.name)) if values else Cell()

    def score(self) -> Cell:
        """Return the mean score over the sets, with the mean standard deviation over seeds if there are several."""
        mean = self.mean(SCORE)
        spreads = [stdev(values) for values in self.seeds.values() if len(values) > 1]
        return replace(mean, text=f"{mean.text} ± {fmean(spreads):.3f}") if spreads else mean

    def value(self, kind: str = "") -> float | None:
        """Return the winning rate over all sets or the sets of a type, or None if undefined."""
        return self.rates.get(f"{RATE}.{kind}" if kind else RATE, {}).get("value")

    def rate(self, kind: str = "") -> Cell:
        """Return the winning rate in percent over all sets or the sets of a type, or the reason why there is none."""
        row = self.rates.get(f"{RATE}.{kind}" if kind else RATE)
        if row is None or row["value"] is None:
            return figure(row)
        ends = {name: None if row[name] is None else 100 * row[name] for name in ("ci_low", "ci_high")}
        return figure({**row, **ends, "value": 100 * row["value"]}, ".0f")

    def score_by_set(self) -> dict[str, float | None]:
        """Return the score of each set."""
        return {name: row["value"] for name, row in self.scores.items()}

    def share(self, sets: Collection[str]) -> float:
        """Return the share of some sets on which the entrant has a score."""
        return sum(self.scores[name]["value"] is not None for name in sets if name in self.scores) / max(1, len(sets))

    @cached_property
    def overall(self) -> Row:
        """Return the row of the winning rate over all sets."""
        return self.rates[RATE]

    @property
    def reading(self) -> str:
        """Return the name without the model: strategy, layer, and the probe if it is an MLP."""
        return self.name.removeprefix(f"{self.model} ")

    @property
    def is_pooled(self) -> bool:
        """Return whether the entrant measures a pooling strategy, that is, reads a model without a control."""
        return self.strategy is not None and not self.control

    @property
    def num_collapsed(self) -> int:
        """Return the number of sets in which the probe predicts one label for all instances."""
        return sum(bool(row["value"]) for row in self.others.get("probe.collapsed", ()))


@dataclass(frozen=True)
class HolmesView:
    """The content of the page: entrants (best first), types of phenomena, probing sets, and problems of the data."""

    entrants: Sequence[Entrant]
    types: Sequence[str]
    sets: Sequence[Row]
    problems: Sequence[str]
    comparisons: Sequence[Row] = ()  # tests of the first entrant with every other one
    examples: Sequence[Row] = ()  # instances of one set
    published: Sequence[Entrant] = ()  # entrants by the published definition, in the order of the others
    #: Right and all answers by word and entrant, on the test instances of sets that read a word; frequent words first.
    words: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    base: str = ""  # model of the first run

    def answer(self) -> str:
        """Return the answer in one sentence or two."""
        best = self.entrants[0]
        if len(self.entrants) == 1:
            return f"{best.name} was probed on {len(self.sets)} sets; name further strategies or layers to compare."
        row = best.overall
        if row["value"] is None:
            return f"No entrant can be compared on the {len(self.sets)} sets, {row['status']}: {row['reason']}."
        sentence = f"{best.name} leads: it wins {best.rate().text} % of its comparisons over {row['n']} sets."
        second = self.entrants[1].overall
        if row["ci_low"] is not None and second["value"] is not None and second["value"] >= row["ci_low"]:
            sentence += f" {self.entrants[1].name} lies within its interval."
        lost = [kind for kind in self.types if self._leader(kind) not in (best.name, None)]
        return f"{sentence} It does not lead in {', '.join(lost)}." if lost else sentence

    def certainty(self) -> str:
        """Return how the leader compares with the second entrant on single instances, or "" without a test."""
        if len(self.entrants) < 2 or not (tested := self._tests(self.entrants[1])):
            return ""
        better, worse = self.against(self.entrants[1])
        return (
            f"Instance by instance, it beats {self.entrants[1].name} significantly in {better} of {len(tested)} sets, "
            f"and loses in {worse} (McNemar's test, Holm over sets)."
        )

    def against(self, other: Entrant) -> tuple[int, int]:
        """Return in how many sets the leader is significantly better and worse than another entrant."""
        sure = [row for row in self._tests(other) if row["p_holm"] < LEVEL]
        better = sum(row["only_entrant"] > row["only_other"] for row in sure)
        return better, len(sure) - better

    def tested(self, other: Entrant) -> str:
        """Format the two numbers of `against` as a table cell, empty for the leader."""
        better, worse = self.against(other)
        return f"{better} : {worse}" if self._tests(other) else ""

    def _tests(self, other: Entrant) -> list[Row]:
        return [row for row in self.comparisons if row["other"] == other.name]

    def _leader(self, kind: str) -> str | None:
        candidates = [entrant for entrant in self._of_most_sets(self.entrants, kind) if entrant.value(kind) is not None]
        return max(candidates, key=lambda entrant: entrant.value(kind) or 0.0).name if candidates else None

    def _of_most_sets(self, entrants: Sequence[Entrant], kind: str) -> list[Entrant]:
        """Return the entrants with a score on the most sets of a type, or of all: the others do not lead over these."""
        sets = [row["set"] for row in self.sets if not kind or row["type"] == kind]
        most = max((entrant.share(sets) for entrant in entrants), default=0.0)
        return [entrant for entrant in entrants if entrant.share(sets) == most]

    @property
    def classed(self) -> list[str]:
        """Return the sets that have classes."""
        return [row["set"] for row in self.sets if row.get("task") == "classes"]

    @property
    def pooled(self) -> list[Entrant]:
        """Return the entrants that read a model without a control, so that they compare pooling strategies."""
        return [entrant for entrant in self.entrants if entrant.is_pooled]

    @property
    def layers(self) -> list[str]:
        """Return the layers from the first to the last."""
        places = {EMBEDDING: -1.0, FINAL: float("inf")}
        layers = {entrant.layer for entrant in self.pooled if entrant.layer is not None}
        return sorted(layers, key=lambda name: places.get(name) or float(name))

    def carried(self) -> dict[str, dict[str, tuple[tuple[str, ...], float]]]:
        """Return for each type and layer the strategies that win most (ties included) and their winning rate.

        The result is empty if there is only one strategy.
        """
        by_type: dict[str, dict[str, tuple[tuple[str, ...], float]]] = {}
        if len({entrant.strategy for entrant in self.pooled}) < 2:
            return by_type
        for kind in ("", *self.types):
            winners = by_type[kind or "all sets"] = {}
            for layer in self.layers:
                of_layer = [entrant for entrant in self.pooled if entrant.layer == layer]
                rates = {entrant.strategy: entrant.value(kind) for entrant in self._of_most_sets(of_layer, kind)}
                wins = {name: rate for name, rate in rates.items() if name is not None and rate is not None}
                if wins:
                    best = max(wins.values())
                    winners[layer] = tuple(sorted(name for name, rate in wins.items() if rate > best - 1e-9)), best
        return by_type


def view_of(run: FinishedRun) -> HolmesView:
    """Read the tables of a run."""
    sets = run.rows("sets")
    entrants = _ordered(_entrants(run, run.rows("results"), "corrected"), sets)
    view = _view(entrants, sets)
    return replace(
        view,
        comparisons=run.rows("comparisons"),
        examples=run.rows("examples"),
        published=_entrants(run, run.rows("published"), "published"),
        words=_answers_by_word([run], view.classed),
        base=_model_of(run),
    )


def view_over(runs: Sequence[FinishedRun]) -> HolmesView:
    """Read the tables of several runs together: compare the entrants of all runs on all sets, and test the leader.

    Raise ConfigError if their figures are not comparable.
    """
    read = [run.rows("results") for run in runs]
    require_one_quantity([row for rows in read for row in rows], SCORE, "entrant")
    sets = {row["set"]: row for run in runs for row in run.rows("sets")}
    entrants = []
    for run, rows in zip(runs, read, strict=True):
        scored = [row for row in rows if not row["metric"].startswith(RATE)]
        entrants += _entrants(run, scored, "corrected")
    entrants = _once(entrants)
    scores = [row for rows in read for row in rows if row["metric"] == SCORE]
    config = cast(HolmesConfig, runs[0].config)
    of_all_runs = winning_rates(
        scores,
        {name: row["phenomenon"] for name, row in sets.items()},
        {name: row["type"] for name, row in sets.items()},
        num_resamples=config.budget.num_bootstrap,
        seed=config.seed,
    )
    rates = figures_by(of_all_runs, "entrant")
    published = [run.rows("published") for run in runs]
    published_by = figures_by(published_rates([row for rows in published for row in rows]), "entrant")
    set_rows = [{**sets[name], "discriminability": tau} for name, tau in discriminability_by_set(scores).items()]
    entrants = _ordered([replace(entrant, rates=rates[entrant.name,]) for entrant in entrants], set_rows)
    predictions = [row for run in runs for row in run.rows("predictions")]
    view = _view(entrants, set_rows)
    comparisons = compared(entrants[0].name, predictions, view.classed).to_pylist()
    words = _answers_by_word(runs, view.classed)
    of_published = [
        replace(entrant, rates=published_by[entrant.name,])
        for run, rows in zip(runs, published, strict=True)
        for entrant in _entrants(run, rows, "published")
    ]
    return replace(view, comparisons=comparisons, published=of_published, words=words, base=_model_of(runs[0]))


def _model_of(run: FinishedRun) -> str:
    """Return the model of a run, or "" for a run that has only vectors which no model makes."""
    return next((row["model"] for row in run.rows("entrants") if row["model"]), "")


def _answers_by_word(runs: Sequence[FinishedRun], classed: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the number of right and of all answers by word and entrant, the most frequent word first."""
    answers: dict[str, dict[str, tuple[int, int]]] = {}
    for run in runs:
        if "predictions" not in run.tables or "word" not in run.tables["predictions"].column_names:
            continue  # of an earlier version
        table = run.tables["predictions"]
        table = table.filter(
            pc.and_(pc.is_valid(table["word"]), pc.is_in(table["set"], pa.array(classed, pa.string())))
        )
        right = pc.fill_null(pc.equal(table["truth"], table["predicted"]), False)
        counts = table.append_column("right", right).group_by(["word", "entrant"])
        for row in counts.aggregate([("right", "sum"), ("right", "count")]).to_pylist():
            answers.setdefault(row["word"], {})[row["entrant"]] = row["right_sum"], row["right_count"]
    most = {word: max(number for _, number in by_entrant.values()) for word, by_entrant in answers.items()}
    return {word: answers[word] for word in sorted(answers, key=lambda word: (-most[word], word))}


def _once(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Return each entrant without a model once, although each run of several models has it.

    Raise ConfigError if two of one name have different scores.
    """
    distinct, by_name = list[Entrant](), dict[str, Entrant]()
    for entrant in entrants:
        first = by_name.get(entrant.name) if entrant.strategy is None else None
        if first is None:
            distinct.append(entrant)
            by_name[entrant.name] = entrant
        elif first.score_by_set() != entrant.score_by_set():
            raise ConfigError(f"{entrant.name} has different scores in two runs: name different vectors differently")
    return distinct


def _view(entrants: Sequence[Entrant], sets: Sequence[Row]) -> HolmesView:
    types = sorted({set_row["type"] for set_row in sets})
    return HolmesView(entrants, types, sets, list(_problems(entrants, sets)))


def _ordered(entrants: Sequence[Entrant], sets: Sequence[Row]) -> list[Entrant]:
    """Return the entrants, the best first. Entrants without scores on some sets come later, and those without a rate
    last.
    """
    names = [row["set"] for row in sets]
    rates = np.array([entrant.overall["value"] for entrant in entrants], float)
    return [entrants[place] for place in best_first(-rates, np.array([entrant.share(names) for entrant in entrants]))]


def _entrants(run: FinishedRun, rows: Sequence[Row], protocol: str) -> list[Entrant]:
    """Return the entrants of a run that have scores, from rows of one protocol."""
    seeds = [row for row in run.rows("seeds", protocol=protocol) if row["value"] is not None]
    entrants = []
    for identity in run.rows("entrants"):
        figures = [row for row in rows if row["entrant"] == identity["entrant"]]
        scores = {row["task"]: row for row in figures if row["metric"] == SCORE}
        if not scores:
            continue
        others = grouped((row["metric"], row) for row in figures)
        values = grouped((row["set"], row["value"]) for row in seeds if row["entrant"] == identity["entrant"])
        rates = {row["metric"]: row for row in figures if row["metric"].startswith(RATE)}
        name, strategy, layer, control = (identity[column] for column in _IDENTITY)
        model = [identity.get(column) for column in ("model", "architecture", "num_parameters")]
        entrants.append(Entrant(name, strategy, layer, control, rates, scores, others, values, *model))
    return entrants


def _problems(entrants: Sequence[Entrant], sets: Sequence[Row]) -> Iterator[str]:
    """Yield one line for each thing that is wrong: collapsed probes, seen test instances, absent sets."""
    collapsed = {entrant.name: entrant.num_collapsed for entrant in entrants if entrant.num_collapsed}
    if collapsed:
        yield f"{sum(collapsed.values())} probes predict one label for all instances: {listed(collapsed)}"
    shares = {entrant.name: entrant.share([row["set"] for row in sets]) for entrant in entrants}
    few = [name for name, share in shares.items() if 0 < share < max(shares.values())]
    if few:
        yield f"scores on fewer sets than others, and so not said to lead: {listed(few)}"
    seen = {row["task"] for entrant in entrants for row in entrant.others.get("probe.seen_share", ()) if row["value"]}
    if seen:
        yield f"test instances that occur whole in train, in {len(seen)} sets: {listed(sorted(seen))}"
    untrained = [name for name in (_without_gain(entrant, entrants) for entrant in entrants) if name]
    if untrained:
        yield f"random weights win as much as the model does: {listed(untrained)}"
    public = suite_sets()
    here = {name for row in sets if row["fidelity"] == "same" for name in (row["set"], row.get("stands_for"))}
    if here & public.keys():
        yield f"of the {len(public)} sets of the public suite, {len(public.keys() - here)} are absent"


def _without_gain(entrant: Entrant, entrants: Sequence[Entrant]) -> str:
    """Return a name for strategy and layer at which an untrained model is no worse; empty for other entrants."""
    trained = [
        other
        for other in entrants
        if not other.control and (other.strategy, other.layer) == (entrant.strategy, entrant.layer)
    ]
    rates = [entrant.value(), trained[0].value() if trained else None]
    if entrant.control != RANDOM_WEIGHTS or rates[0] is None or rates[1] is None or rates[0] < rates[1]:
        return ""
    return f"{entrant.strategy} {entrant.layer}"
