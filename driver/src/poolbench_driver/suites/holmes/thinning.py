"""What a run reads of a set: splits where a source gives none, and a share of train."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from poolbench_corpora.probing import ProbingData
from poolbench_driver.suites.holmes.config import HolmesConfig


def thinned(data: ProbingData, config: HolmesConfig) -> ProbingData:
    """Return the instances that a run asks for, all with a split.

    Where a source gives no splits, they are drawn here, the same with and without `flash`: 70, 10 and 20 % of the
    groups. Of train a share of the groups is kept, and of dev and test at most so many instances. Groups are taken in a
    seeded order that takes turns between labels, so a smaller share is part of a larger one.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in data.instances.to_pylist():
        groups.setdefault(row["group"], []).append(row)
    by_label: dict[str, list[str]] = {}
    for name in sorted(groups, key=lambda group: hashlib.sha256(f"{config.seed}:{group}".encode()).hexdigest()):
        by_label.setdefault(str(groups[name][0]["label"]), []).append(name)
    by_label = dict(sorted(by_label.items()))
    place = {name: (n + 0.5) / len(names) for names in by_label.values() for n, name in enumerate(names)}
    ordered = sorted(place, key=lambda name: (place[name], name))
    if all(row["split"] is None for rows in groups.values() for row in rows):
        _draw_splits(groups, by_label)
    instances = list[dict[str, Any]]()
    for split in ("train", "dev", "test"):
        split_rows = [groups[name] for name in ordered if groups[name][0]["split"] == split]
        if split == "train":
            sample = split_rows[: max(2, round((config.flash or 1.0) * len(split_rows)))]
        else:
            sizes = accumulate(map(len, split_rows))
            sample = [rows for rows, size in zip(split_rows, sizes, strict=True) if size <= (config.flash_eval or size)]
        instances += [row for rows in sample for row in rows]
    instances += [row for rows in groups.values() for row in rows if rows[0]["split"] is None]
    used = {name for row in instances for name in (*row["first"], *row["second"])}
    passages = [row for row in data.passages.to_pylist() if row["passage_id"] in used]
    return ProbingData(
        pa.Table.from_pylist(passages, data.passages.schema),
        pa.Table.from_pylist(instances, data.instances.schema),
        data.notes,
    )


def _draw_splits(groups: Mapping[str, list[dict[str, Any]]], by_label: Mapping[str, Sequence[str]]) -> None:
    """Give one of every ten groups to dev, two to test, and seven to train.

    Groups are counted label after label, so that all splits have the labels of the whole. In the order that takes
    turns, dev would have one of two labels and test one of five, where the groups are named after their labels.
    """
    for number, name in enumerate(chain.from_iterable(by_label.values())):
        split = {3: "test", 6: "dev", 8: "test"}.get(number % 10, "train")
        for row in groups[name]:
            row["split"] = split
