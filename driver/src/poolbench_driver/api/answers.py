"""What extractor, prober and scorer answer, as values that notebooks draw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from poolbench.errors import InputError
from poolbench.statuses import Status
from poolbench_driver.adhoc.texts import TextLine
from poolbench_driver.api.shown import Rows, Shown, part_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from poolbench_driver.contract.page import Answer, Part, Passage


def text_lines(texts: str | Iterable[str | TextLine]) -> list[TextLine]:
    """Return texts with their numbers from 1. Raise InputError if there is none, or one is not a text."""
    lines = []
    for number, text in enumerate([texts] if isinstance(texts, str) else texts, 1):
        if not isinstance(text, str | TextLine):
            raise InputError(f"text {number} is {type(text).__name__}; texts are strings")
        lines.append(TextLine(number, text) if isinstance(text, str) else text)
    if not lines:
        raise InputError("no texts: give a text, or several")
    return lines


class Embeddings(Rows):
    """Vectors of texts: one row per text, whose vector is null where it failed. NumPy takes it as an array."""

    @property
    def vectors(self) -> np.ndarray:
        """Return float32 [texts, width]; NaN where a text failed."""
        from poolbench.contracts.tables import vector_matrix

        return vector_matrix(self.arrow["vector"])

    @property
    def notes(self) -> dict[str, str]:
        """Return how the vectors were made: model and revision, strategy, layer, width and so on."""
        return {name.decode(): value.decode() for name, value in (self.arrow.schema.metadata or {}).items()}

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Return line, status and reason of the texts that failed."""
        rows = self.arrow.select(["line", "status", "reason"]).to_pylist()
        return [row for row in rows if row["status"] != Status.OK]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.vectors if dtype is None else self.vectors.astype(dtype)

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        return Rows(self.arrow.drop_columns("vector"))._view()


class Explained(Shown):
    """What each token of a text adds to its vector.

    Attributes:
        answer: As `POST /extractor/explain` answers.
        entry: The entry of the text in it, with status and reason.
        tokens: Text, start, end, weight, and the contribution to the projection or None, of each token.
        projection: That of the vector on the direction, the sum of the contributions; None without a direction.
    """

    def __init__(self, text: str, answer: dict[str, Any]) -> None:
        self.text, self.answer, self.entry = text, answer, dict(answer["texts"][0])
        self.tokens: list[dict[str, Any]] = self.entry["tokens"]
        self.projection: float | None = self.entry["projection"]

    @property
    def shaded(self) -> Passage:
        """Return the text with its tokens shaded by contribution, or by weight without a direction."""
        from poolbench_driver.pages.tokens import shaded_by

        return shaded_by("weight" if self.projection is None else "contribution", self.text, self.tokens)

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.pages.tokens import explained_blocks

        note = f"{self.answer['strategy']} at layer {self.answer['layer']}"
        return None, [part_of(*explained_blocks(self.text, self.entry), note=note)]


#: Columns of the table of figures.
FIGURES = ("figure", "value", "95 % interval", "n", "groups", "note")


class Probed(Shown):
    """The figures of a probe: one measure per row, its scores and its folds."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        """As `POST /prober/probe` answers: `task`, `measures`, `scores` and `folds`."""

    @property
    def measures(self) -> Rows:
        """Return the figures: metric, direction, value, interval, n, status and reason."""
        import pyarrow as pa

        return Rows(pa.Table.from_pylist(self.answer["measures"]))

    def figures(self) -> list[dict[str, Any]]:
        """Return the figures as text; one that is null has its status and reason."""
        return [_figure(measure) for measure in self.answer["measures"]]

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.contract.page import Line, Table

        lines = [Line.of(*("" if row[name] is None else str(row[name]) for name in FIGURES)) for row in self.figures()]
        return None, [part_of(Table.of(FIGURES, lines, f"task: {self.answer['task']}"))]


def _figure(measure: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table."""
    params = json.loads(measure["params"] or "{}")
    name, direction = [measure["metric"]], measure["direction"]
    name += [direction] if direction and not measure["metric"].endswith(f".{direction}") else []
    name += [f"{key}={value}" for key, value in params.items()]
    low, high, value = measure["ci_low"], measure["ci_high"], measure["value"]
    null = f"{measure['status']}: " if value is None else ""
    return {
        "figure": " ".join(name),
        "value": None if value is None else f"{value:.3f}",
        "95 % interval": None if low is None else f"{low:.3f} to {high:.3f}",
        "n": measure["n"],
        "groups": measure["num_groups"],
        "note": f"{null}{measure['reason'] or ''}".rstrip(": "),
    }


@dataclass(frozen=True)
class Direction:
    """A direction made of vectors of two classes, of unit norm. NumPy takes it as an array."""

    vector: np.ndarray = field(repr=False)  # float32 [width]
    method: str
    raw_norm: float  # its norm before it was scaled to 1
    num_positive: int
    num_negative: int
    num_left_out: int = 0  # vectors that failed
    made_by: dict[str, str] = field(default_factory=dict)  # how the vectors were made, as far as they say so

    @property
    def layer(self) -> int | None:
        """Return the block of the vectors; None where they do not say it."""
        return int(self.made_by["layer"]) if "layer" in self.made_by else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.vector if dtype is None else self.vector.astype(dtype)


class Scores(Rows):
    """Scores of texts: one row per text, and one column per scorer, P(concept)."""

    def __init__(self, lines: Sequence[TextLine], scorers: Sequence[dict[str, Any]]) -> None:
        import pyarrow as pa

        self.ids = [line.id if line.id is not None else str(line.number) for line in lines]
        self.scorers = scorers
        """As `POST /scorer/score` answers, with `name`, and the validity gate of each."""
        columns: dict[str, pa.Array] = {"id": pa.array(self.ids), "text": pa.array([line.text for line in lines])}
        super().__init__(pa.table(columns | {one["name"]: pa.array(one["scores"], pa.float64()) for one in scorers}))

    @property
    def notes(self) -> list[str]:
        """Return which scorers failed their gate, and why."""
        failed = [one for one in self.scorers if one["gate"] is not None and not one["gate"]["passed"]]
        return [
            f"{one['name']}: this scorer failed its gate, so its scores say little: {one['gate']['reason']}"
            for one in failed
        ]

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.contract.page import Items

        return None, [*super()._view()[1], part_of(Items(self.notes))]
