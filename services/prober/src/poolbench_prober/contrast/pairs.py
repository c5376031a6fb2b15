"""Pairs of stories, ordered so that the rows of a subject stand together."""

from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Self

import numpy as np
import pyarrow as pa

from poolbench.contracts.tables import STORIES, require_columns
from poolbench.errors import InputError, shown


@dataclass(frozen=True)
class Pairs:
    """Pairs of stories, by subject and then by row id, so that the order of the table changes no bit."""

    passages: tuple[str, ...]  # ids of the distinct stories [P], sorted
    subjects: np.ndarray  # subject of each row [n]
    stories_n2: np.ndarray  # places in `passages` of the two stories of each row

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Read the pairs in `table` (STORIES).

        Raise InputError for a table without rows, an empty field, duplicate row ids, or a row with only one story.
        """
        require_columns(table, STORIES, "the stories")
        rows = sorted(
            table.select(STORIES.names).to_pylist(), key=lambda row: (str(row["subject"]), str(row["row_id"]))
        )
        if not rows:
            raise InputError("the stories have no rows; at least one pair is needed")
        for row in rows:
            if not all(row.values()) or row["first"] == row["second"]:
                raise InputError(f"row {shown(row['row_id'])} of the stories needs a subject and two different stories")
        if len({row["row_id"] for row in rows}) < len(rows):
            raise InputError(f"{len(rows)} rows of the stories have fewer ids; the ids of rows must be unique")
        passages = sorted({row[side] for row in rows for side in ("first", "second")})
        place = {passage: number for number, passage in enumerate(passages)}
        stories_n2 = np.array([[place[row["first"]], place[row["second"]]] for row in rows])
        return cls(tuple(passages), np.array([row["subject"] for row in rows], dtype=object), stories_n2)

    def __len__(self) -> int:
        return len(self.subjects)

    def chosen(self, rows: np.ndarray) -> "Pairs":
        """Select rows, in the order of `rows` (row numbers or a mask)."""
        return Pairs(self.passages, self.subjects[rows], self.stories_n2[rows])

    def by_subject(self) -> list[tuple[str, slice]]:
        """Return the subjects with the slice of rows of each."""
        counts = [(subject, sum(1 for _ in rows)) for subject, rows in groupby(map(str, self.subjects))]
        ends = accumulate(count for _, count in counts)
        return [(subject, slice(end - count, end)) for (subject, count), end in zip(counts, ends, strict=True)]

    @property
    def codes(self) -> np.ndarray:
        """Return the number of each row's subject [n]."""
        numbers = [np.full(rows.stop - rows.start, code) for code, (_, rows) in enumerate(self.by_subject())]
        return np.concatenate([np.zeros(0, dtype=int), *numbers])
