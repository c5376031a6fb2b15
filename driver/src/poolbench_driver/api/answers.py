"""Answers of the extractor, the prober and the scorer, as objects that notebooks draw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from poolbench.errors import InputError
from poolbench.statuses import Status
from poolbench_driver.api.notebook import Rows, Shown, part_of
from poolbench_driver.queries.plain_values import listed
from poolbench_driver.queries.texts import TextLine

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from poolbench_driver.contract.page import Answer, Part, Passage


def text_lines(texts: str | Iterable[str | TextLine]) -> list[TextLine]:
    """Number texts from 1. Raise InputError if there are no texts, or if an entry is not a string."""
    lines = []
    for number, text in enumerate([texts] if isinstance(texts, str) else listed(texts, "texts"), 1):
        if not isinstance(text, str | TextLine):
            raise InputError(f"text {number} is {type(text).__name__}; texts are strings")
        lines.append(TextLine(number, text) if isinstance(text, str) else text)
    if not lines:
        raise InputError("no texts: give a text, or several")
    return lines


class Embeddings(Rows):
    """Vectors of texts, one row per text. The vector of a text that failed is null.

    `numpy.asarray` turns the object into the array of `vectors`.
    """

    @property
    def vectors(self) -> np.ndarray:
        """Return the vectors as a writable float32 array [texts, width]. The row of a text that failed is NaN."""
        import numpy as np

        from poolbench.contracts.tables import vector_matrix

        return np.require(vector_matrix(self.arrow["vector"]), requirements="W")

    @property
    def notes(self) -> dict[str, str]:
        """Return how the vectors were made, such as the model, its revision, the strategy, the layer and the width."""
        return {name.decode(): value.decode() for name, value in (self.arrow.schema.metadata or {}).items()}

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Return line number (from 1), status and reason of each text that failed."""
        rows = self.arrow.select(["line", "status", "reason"]).to_pylist()
        return [row for row in rows if row["status"] != Status.OK]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        return np.array(self.vectors, dtype, copy=copy)

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        return Rows(self.arrow.drop_columns("vector"))._view()


class Explained(Shown):
    """The contribution of each token of a text to the pooled vector of the text.

    Attributes:
        text: The text.
        answer: The answer of `POST /extractor/explain`.
        entry: The entry of the text in `answer`, with its status and reason.
        tokens: One dictionary per token: its text, its first character `start`, the character after it `end`, its
            pooling weight, and its contribution to the projection (None without a direction).
        projection: The projection of the vector on the direction, which is the sum of the contributions. None without
            a direction.
    """

    def __init__(self, text: str, answer: dict[str, Any]) -> None:
        self.text, self.answer, self.entry = text, answer, dict(answer["texts"][0])
        self.tokens: list[dict[str, Any]] = self.entry["tokens"]
        self.projection: float | None = self.entry["projection"]

    @property
    def shaded(self) -> Passage:
        """Return the text with each token shaded by its contribution, or by its weight if there is no direction."""
        from poolbench_driver.pages.tokens import shaded_by

        return shaded_by("weight" if self.projection is None else "contribution", self.text, self.tokens)

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.pages.tokens import explained_blocks

        note = f"{self.answer['strategy']} at layer {self.answer['layer']}"
        return None, [part_of(*explained_blocks(self.text, self.entry), note=note)]


#: Columns of the table of figures.
FIGURES = ("figure", "value", "95 % interval", "n", "groups", "note")


class Probed(Shown):
    """The figures of a probe, with the score and the fold of each vector.

    Attributes:
        answer: The answer of `POST /prober/probe`: `task`, `measures`, `scores` and `folds`.
    """

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer

    @property
    def measures(self) -> Rows:
        """Return one row per figure, with metric, direction, value, 95 % interval, n, status and reason."""
        import pyarrow as pa

        return Rows(pa.Table.from_pylist(self.answer["measures"]))

    def figures(self) -> list[dict[str, Any]]:
        """Return one dictionary of texts per figure. The note of a null figure is its status and reason."""
        return [_figure(measure) for measure in self.answer["measures"]]

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.contract.page import Line, Table

        lines = [Line.of(*("" if row[name] is None else str(row[name]) for name in FIGURES)) for row in self.figures()]
        return None, [part_of(Table.of(FIGURES, lines, f"task: {self.answer['task']}"))]


def _figure(measure: dict[str, Any]) -> dict[str, Any]:
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
    """A direction of unit norm, from the vectors of two classes.

    `numpy.asarray` turns the object into the array of `vector`.
    """

    vector: np.ndarray = field(repr=False)  # float32 [width]
    method: str  # construction, such as C1
    raw_norm: float  # norm of the direction before it was scaled to 1
    num_positive: int  # vectors of the positive class that were used
    num_negative: int  # vectors of the negative class that were used
    num_left_out: int = 0  # vectors that were not finite, so that they were not used
    made_by: dict[str, str] = field(default_factory=dict)  # how the vectors were made; empty for plain arrays

    @property
    def layer(self) -> int | None:
        """Return the layer of the vectors. None if the vectors carry no layer."""
        return int(self.made_by["layer"]) if "layer" in self.made_by else None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        return np.array(self.vector, dtype, copy=copy)


class Scores(Rows):
    """Scores of texts. The columns are `id`, `text`, and one column per scorer with P(concept), from 0 to 1.

    Attributes:
        ids: The id of each text, or its number from 1 if it has no id.
        scorers: The answer of `POST /scorer/score`: one entry per scorer, with its name, scores and validity gate.
    """

    def __init__(self, lines: Sequence[TextLine], scorers: Sequence[dict[str, Any]]) -> None:
        import pyarrow as pa

        self.ids = [line.id if line.id is not None else str(line.number) for line in lines]
        self.scorers = scorers
        columns: dict[str, pa.Array] = {"id": pa.array(self.ids), "text": pa.array([line.text for line in lines])}
        super().__init__(pa.table(columns | {one["name"]: pa.array(one["scores"], pa.float64()) for one in scorers}))

    @property
    def notes(self) -> list[str]:
        """Return one sentence for each scorer that failed its validity gate, with the reason."""
        failed = [one for one in self.scorers if one["gate"] is not None and not one["gate"]["passed"]]
        return [
            f"{one['name']}: this scorer failed its gate, so its scores say little: {one['gate']['reason']}"
            for one in failed
        ]

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.contract.page import Items

        return None, [*super()._view()[1], part_of(Items(self.notes))]
