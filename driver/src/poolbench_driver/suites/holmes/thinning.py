"""What a run reads of a set: a share of train, and some instances of dev and test."""

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import pyarrow as pa

from poolbench_corpora.probing import ProbingData, seeded_groups, with_splits
from poolbench_driver.suites.holmes.config import HolmesConfig


def thinned(data: ProbingData, config: HolmesConfig) -> ProbingData:
    """Reduce the instances of a set to the number that a run asks for, all with a split.

    If a source gives no splits, they are drawn, and `flash` does not change the draw. Train keeps a share of its
    groups. Dev and test keep at most `flash_eval` instances, but at least one group. Groups are taken in a seeded
    order that alternates between labels, so a smaller share is part of a larger share.
    """
    groups, by_label = seeded_groups(with_splits(data, config.seed), config.seed)
    place = {name: (n + 0.5) / len(names) for names in by_label.values() for n, name in enumerate(names)}
    ordered = sorted(place, key=lambda name: (place[name], name))
    instances = list[dict[str, Any]]()
    for split in ("train", "dev", "test"):
        split_rows = [groups[name] for name in ordered if groups[name][0]["split"] == split]
        if split == "train":
            num_groups = max(2, round((config.flash or 1.0) * len(split_rows)))
        elif config.flash_eval is None:
            num_groups = len(split_rows)
        else:
            num_groups = max(1, bisect_right(list(accumulate(map(len, split_rows))), config.flash_eval))
        instances += [row for rows in split_rows[:num_groups] for row in rows]
    instances += [row for rows in groups.values() for row in rows if rows[0]["split"] is None]
    used = {name for row in instances for name in (*row["first"], *row["second"])}
    passages = [row for row in data.passages.to_pylist() if row["passage_id"] in used]
    return ProbingData(
        pa.Table.from_pylist(passages, data.passages.schema),
        pa.Table.from_pylist(instances, data.instances.schema),
        data.notes,
    )
