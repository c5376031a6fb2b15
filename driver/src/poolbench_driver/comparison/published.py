"""A run beside a published table: each figure of the table with ours. One without a counterpart has a reason."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import fmean, median
from typing import Any

from poolbench.contracts import Row
from poolbench.errors import ConfigError, NotFoundError, UnknownNameError
from poolbench_driver.comparison.pairing import SAME_VALUE, read_results
from poolbench_driver.comparison.render import Titled, fixed
from poolbench_driver.config import DEFAULT_SUITE, of_concepts
from poolbench_driver.contract.abilities import RepeatsPublished
from poolbench_driver.contract.published import PublishedColumn, PublishedModel, PublishedStrategy, PublishedTable
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.pages.boards.agreement import layer_agreements
from poolbench_driver.records import Run

#: How the source steered; figures made otherwise are other quantities.
STEERED_AS = {"alpha_unit": "absolute", "opening_set": "published-10", "direction": "C1"}


@dataclass(frozen=True)
class ComparedCell:
    """One figure of a published table, beside the run's figure."""

    column: str
    strategy: str
    concept: str
    protocol: str
    metric: str
    our_strategy: str | None
    theirs: float | None
    ours: float | None = None
    difference: float | None = None  # ours minus theirs
    ci_low: float | None = None
    ci_high: float | None = None
    inside: bool | None = None  # whether theirs lies in our interval; None without an interval
    reason: str = ""  # why there is nothing to compare; empty where there is


@dataclass(frozen=True)
class TableComparison:
    """The figures of one model of a published table, each beside the figure of a run.

    Attributes:
        run: Id of the run.
        model: The model's entry in the table.
        title: Title of the table.
        settings: Settings in which the run differs from the published one, as sentences.
        cells: The figures, published definitions first.
    """

    run: str
    model: PublishedModel
    title: str
    settings: list[str]
    cells: list[ComparedCell]

    @property
    def sentence(self) -> str:
        """Return one sentence that names the run, the table, the model and the layer."""
        return f"{self.run} against {self.title}, {self.model.preset} at layer {self.model.best_layer}"

    @property
    def compared(self) -> bool:
        """Return whether any figure has a counterpart."""
        return any(cell.difference is not None for cell in self.cells)

    def changed(self) -> bool:
        """Return whether any figure differs."""
        return any(abs(cell.difference) > SAME_VALUE for cell in self.cells if cell.difference is not None)

    def tables(self, *, everything: bool) -> list[Titled]:
        """Return the table of figures, and a table of the differences per column.

        Args:
            everything: Also return the figures without a counterpart.
        """
        cells = [cell for cell in self.cells if everything or cell.difference is not None]
        tables = (("cells", [_cell_row(cell) for cell in cells]), ("by column", list(_summary_rows(self.cells))))
        return [(title, list(rows[0]) if rows else [], rows) for title, rows in tables]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, as `poolbench-driver reproduce --json` prints them."""
        return {
            "run": self.run,
            "model": self.model.preset,
            "settings": self.settings,
            "cells": [asdict(cell) for cell in self.cells],
            "notes": [self.sentence, *self.settings],
        }


def suite_of_table(name: str) -> RepeatsPublished:
    """Return the suite that has a published table, and for the folder of a table the default suite."""
    info = next((info for info in SUITES.all() if name in info.published_tables), SUITES.get(DEFAULT_SUITE))
    suite = info.load()
    assert isinstance(suite, RepeatsPublished)
    return suite


def compare_with_table(
    folder: Run,
    suite: RepeatsPublished,
    table: PublishedTable,
    model: str | None = None,
    *,
    columns: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> TableComparison:
    """Compare the figures of a table with the figures of a run of the same model.

    Args:
        folder: The run.
        suite: The suite of the table.
        table: The table.
        model: The model of the table that the run must have measured; by default any.
        columns: Only these columns of the table; all by default.
        metrics: Only the columns with these PoolBench metrics; all by default.

    Raises:
        ConfigError: The run measured another model, or no concepts.
        UnknownNameError: The table has no such model, column or metric.
    """
    config = of_concepts(folder.config)
    measured = table.model(config.model)
    if model is not None and table.model(model) != measured:
        raise ConfigError(f"run {folder.id} measured {measured.preset}, not {model}; compare it with {measured.preset}")
    table.require_columns(columns)
    measurable = {metric for column in table.columns for metric in column.ours.values()}
    for name in metrics:
        if name not in measurable:
            raise UnknownNameError("metric", name, measurable)
    rows = RunRows(read_results(folder), _published_rows(folder))
    cells = compare_cells(table, measured, rows, columns)
    if not columns and not metrics:
        cells += compare_layers(table, measured, rows)
    return TableComparison(
        folder.id,
        measured,
        table.source["title"],
        suite.other_settings(config),
        [cell for cell in cells if not metrics or cell.metric in metrics],
    )


def _published_rows(folder: Run) -> list[Row] | None:
    try:
        return folder.read_table("published").to_pylist()
    except NotFoundError:
        return None


class RunRows:
    """Rows of `results` and `published` of one run, by protocol, metric, strategy and concept.

    Args:
        corrected: Rows of `results.parquet`.
        published: Rows of `published.parquet`, or None if the run has no such table.
    """

    def __init__(self, corrected: Iterable[Row], published: Iterable[Row] | None) -> None:
        self._has_published = published is not None
        self._rows: dict[tuple[str, ...], list[Row]] = defaultdict(list)
        for row in (*corrected, *(published or ())):
            if row["strategy"] and row["concept"]:
                self._rows[row["protocol"], row["metric"], row["strategy"], row["concept"]].append(row)

    def of_metric(self, protocol: str, metric: str) -> Iterator[Row]:
        """Yield all rows of a metric by one protocol."""
        for key, rows in self._rows.items():
            if key[:2] == (protocol, metric):
                yield from rows

    def figure(self, column: PublishedColumn, protocol: str, strategy: str, concept: str, layer: int) -> Row:
        """Return the row of a cell. Raise NotFoundError with the reason if there is nothing to compare."""
        if protocol == "published" and not self._has_published:
            raise NotFoundError("the run has no published figures; run it with --protocol published")
        rows = self._rows.get((protocol, column.ours[protocol], strategy, concept), [])
        if protocol == "published" and column.scp:
            rows = [row for row in rows if json.loads(row["params"] or "{}").get("scp") == column.scp]
        if not rows:
            raise NotFoundError(self._absent(column.ours[protocol], strategy, concept))
        row = next((row for row in rows if row["layer"] == layer), None)
        if row is None:
            layers = ", ".join(sorted({str(row["layer"]) for row in rows}))
            raise NotFoundError(f"the run has layer {layers}; the table's is {layer}")
        if row["value"] is None:
            raise NotFoundError(f"{row['status']}: {row['reason'] or 'no value'}")
        others = [
            f"{name} {row[name]}, not {value}" for name, value in STEERED_AS.items() if row[name] not in (None, value)
        ]
        if others and not column.id.startswith("D1_"):
            raise NotFoundError(f"steered otherwise: {'; '.join(others)}")
        return row

    def _absent(self, metric: str, strategy: str, concept: str) -> str:
        """Return why the run has no row of a cell."""
        if all(key[2] != strategy for key in self._rows):
            return f"the run has no strategy {strategy}"
        if all(key[3] != concept for key in self._rows):
            return f"the run has no concept {concept}"
        return f"the run did not measure {metric}"


def compare_cells(
    table: PublishedTable, model: PublishedModel, run: RunRows, columns: Sequence[str] = ()
) -> list[ComparedCell]:
    """Return the table's figures of a model beside the run's figures, published definitions first.

    Args:
        columns: Only these columns of the table; all by default.
    """
    return [
        _compared(table, model, run, column, protocol, strategy, concept)
        for column in table.columns
        if not columns or column.id in columns
        for protocol in column.ours
        for strategy in table.strategies
        for concept in table.concepts
    ]


def compare_layers(table: PublishedTable, model: PublishedModel, run: RunRows) -> list[ComparedCell]:
    """Return the table's agreement of layers on each concept beside that of the run, by both protocols.

    The run's is over those of its strategies that are in the table, at the layers of the table.
    """
    names, cells = {strategy.ours for strategy in table.strategies}, list[ComparedCell]()
    for protocol in ("published", "corrected") if table.layer_agreement else ():
        rows = run.of_metric(protocol, "d1.auroc")
        rows_of_table = [row for row in rows if row["strategy"] in names and row["layer"] in model.layers]
        agreements = {agreement.concept: agreement for agreement in layer_agreements(rows_of_table, "d1.auroc")}
        for concept in table.concepts:
            theirs, agreement = table.layer_agreement[model.name, concept], agreements.get(concept)
            cell = ComparedCell("D1_icc", "all", concept, protocol, "ICC(2,1) of layers", None, theirs)
            if agreement is None or agreement.layers != model.layers or agreement.value is None:
                needed = ", ".join(map(str, model.layers))
                cell = replace(cell, reason=f"two strategies with d1.auroc at layers {needed} are needed")
            else:
                strategies, ours = f"{agreement.num_strategies} strategies", agreement.value
                cell = replace(cell, our_strategy=strategies, ours=ours, difference=ours - theirs)
            cells.append(cell)
    return cells


def _compared(
    table: PublishedTable, model: PublishedModel, run: RunRows, column: PublishedColumn, protocol: str,
    strategy: PublishedStrategy, concept: str,
) -> ComparedCell:  # fmt: skip
    theirs = table.values[model.name, strategy.id, concept, column.id]
    cell = ComparedCell(column.id, strategy.id, concept, protocol, column.ours[protocol], strategy.ours, theirs)
    if strategy.ours is None:
        return replace(cell, reason=strategy.differs)
    try:
        row = run.figure(column, protocol, strategy.ours, concept, model.best_layer)
    except NotFoundError as error:
        return replace(cell, reason=str(error))
    low, high = row["ci_low"], row["ci_high"]
    cell = replace(cell, ours=row["value"], ci_low=low, ci_high=high)
    if theirs is None:
        return replace(cell, reason="null in the table")
    inside = None if low is None or high is None else low <= theirs <= high
    return replace(cell, difference=row["value"] - theirs, inside=inside)


def _summary_rows(cells: Iterable[ComparedCell]) -> Iterable[Row]:
    """Yield one row per column and protocol, with the number of compared cells and their differences."""
    for (column, protocol), group in groupby(cells, key=lambda cell: (cell.column, cell.protocol)):
        group_cells = list(group)
        differences = [cell.difference for cell in group_cells if cell.difference is not None]
        sizes = [abs(difference) for difference in differences]
        inside = [cell.inside for cell in group_cells if cell.inside is not None]
        reasons = Counter(cell.reason for cell in group_cells if cell.reason).most_common(1)
        yield {
            "column": column,
            "protocol": protocol,
            "metric": group_cells[0].metric,
            "cells": len(group_cells),
            "compared": len(sizes),
            "mean difference": fixed(fmean(differences) if differences else None, 5),
            "median |difference|": fixed(median(sizes) if sizes else None, 5),
            "largest": fixed(max(sizes, default=None), 5),
            "in our interval": f"{sum(inside)} of {len(inside)}" if inside else "",
            "mostly why not": "".join(f"{reason} ({count})" for reason, count in reasons),
        }


def _cell_row(cell: ComparedCell) -> Row:
    return {
        "column": cell.column,
        "strategy": cell.strategy,
        "ours is": cell.our_strategy or "",
        "concept": cell.concept,
        "protocol": cell.protocol,
        "theirs": fixed(cell.theirs, 5),
        "ours": fixed(cell.ours, 5),
        "difference": fixed(cell.difference, 5),
        "95 % interval": "" if cell.ci_low is None else f"{cell.ci_low:z.5f} to {cell.ci_high:z.5f}",
        "theirs inside": {True: "yes", False: "no", None: ""}[cell.inside],
        "reason": cell.reason,
    }
