"""The test instances behind a figure of Holmes: those that the probe had wrong, then those it had right."""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.grouping import grouped
from poolbench_driver.config import Control
from poolbench_driver.contract.evidence import NO_TEXTS, Evidence, OpenedCell, TextGroup, TextIds
from poolbench_driver.contract.page import Column, Heads, Line, Part, Table
from poolbench_driver.contract.source import RowSource
from poolbench_driver.pages.plain import text_cell
from poolbench_driver.suites.holmes.plan import HolmesPlan
from poolbench_driver.suites.holmes.rates import texts_of


def evidence(cell: OpenedCell) -> Iterator[Part]:
    """Yield test instances of a set with their labels and the predictions of an entrant."""
    set_name, entrant = cell.row["task"], cell.row["entrant"]
    predictions = cell.rows("predictions", set=set_name, entrant=entrant)
    if not predictions:
        return
    is_classed = any(row["task"] == "classes" for row in cell.rows("sets", set=set_name))
    instances = wrong_first(predictions, is_classed=is_classed)[: cell.most]
    control = next((row["control"] for row in cell.rows("entrants", entrant=entrant)), None)
    texts = cell.texts(TextGroup(set_name, control or ""), [row["instance_id"] for row in instances])
    heads: Heads = ["", *(Column(head, is_text=True) for head in ("label", "predicted", "text"))]
    lines = [
        Line.of(
            _verdict(row) if is_classed else "",
            row["truth"],
            "none" if row["predicted"] is None else row["predicted"],
            text_cell(texts.get(row["instance_id"]), row["instance_id"]),
        )
        for row in instances
    ]
    counted = f"{sum(row['predicted'] == row['truth'] for row in predictions)} of {len(predictions)} are right. "
    order = "Wrong ones come first." if is_classed else "The largest errors come first."
    note = (
        f"Test instances of the first seed. {counted if is_classed else ''}{order} Where a span is read, it is marked."
    )
    if len(texts) < len(instances):
        note += NO_TEXTS
    yield Part("instances", f"{set_name} as {entrant} reads it", [Table.of(heads, lines)], note=note)


def _verdict(row: Row) -> str:
    return "right" if row["predicted"] == row["truth"] else "wrong"


def wrong_first(predictions: Sequence[Row], *, is_classed: bool) -> list[Row]:
    """Sort predictions by error, the largest first. Instances without a prediction come last."""

    def place(row: Row) -> tuple[bool, float, str]:
        if row["predicted"] is None:
            return True, 0.0, row["instance_id"]
        if is_classed:
            return False, float(row["predicted"] == row["truth"]), row["instance_id"]
        return False, -abs(float(row["predicted"]) - float(row["truth"])), row["instance_id"]

    return sorted(predictions, key=place)


def shown_texts(tables: Mapping[str, pa.Table], most: int) -> Iterator[tuple[TextGroup, str]]:
    """Yield the instances that the cells of each set and entrant show."""
    classed = {row["set"] for row in tables["sets"].to_pylist() if row["task"] == "classes"}
    controls = {row["entrant"]: row["control"] or "" for row in tables["entrants"].to_pylist()}
    cells = grouped(((row["set"], row["entrant"]), row) for row in tables["predictions"].to_pylist())
    for (set_name, entrant), predictions in cells.items():
        for row in wrong_first(predictions, is_classed=set_name in classed)[:most]:
            yield TextGroup(set_name, controls[entrant]), row["instance_id"]


def texts(plan: HolmesPlan, _source: RowSource, wanted: TextIds) -> Iterator[Row]:
    """Yield texts of instances, as they are read under a control, as rows of `TEXTS`."""
    for group, ids in wanted.items():
        data = plan.scope.data_of(cast("Control | None", group.origin or None))[group.block]
        passages = {row["passage_id"]: row for row in data.passages.to_pylist()}
        for instance in data.instances.to_pylist():
            if instance["instance_id"] in ids:
                marked = list(texts_of(instance, passages))
                yield {**group._asdict(), "text_id": instance["instance_id"], "texts": marked}


BEHIND = Evidence(evidence, shown_texts, texts)
