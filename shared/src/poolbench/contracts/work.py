"""Sizes of what tasks read and write, and amounts of work, which the time of a task is proportional to.

Each step declares its rules. Workers record the work beside the time of each task, and the driver computes it for tasks
that it has not sent, so times of earlier tasks give times of planned ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from poolbench.contracts.tasks import Task

#: Bytes of a table without rows: schema, manifest.
_TABLE_BYTES = 2_000.0
#: Bytes that a token of text takes in a compressed table.
TEXT_TOKEN_BYTES = 6.0


class Shape(NamedTuple):
    """Size of an input or output of a task."""

    rows: int = 0
    width: int = 0  # of its vectors; 0 if it has none
    base: str = ""  # base model of a scorer
    row_bytes: float = 16.0  # of a row without its vector; ids and scores repeat and compress well

    @property
    def num_bytes(self) -> float:
        """Return about how many bytes are stored."""
        return _TABLE_BYTES + self.rows * (4.0 * self.width + self.row_bytes)


class Work(NamedTuple):
    """An amount of work. Two amounts can be compared only if they have the same kind of task, unit and variant."""

    amount: float
    unit: str
    variant: str = ""  # what the time of one unit depends on, such as the model


#: Sizes of inputs by role.
Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Sized:
    """A task with the sizes of its inputs, which the rules of its step read."""

    task: Task
    params: Any
    inputs: Shapes
    width: int = 0  # of the model's hidden states; 0 where only the work is asked for
    passage_tokens: float = 0.0  # expected tokens of a passage

    @property
    def rows(self) -> int:
        """Return the rows of the largest input."""
        return max((shape.rows for shape in self.inputs.values()), default=0)

    @property
    def read_width(self) -> str:
        """Return the width of the vectors that the task reads, as a variant.

        Raise KeyError if the task reads no vectors.
        """
        widths = [shape.width for shape in self.inputs.values() if shape.width]
        if not widths:
            raise KeyError("vectors")
        return f"width {min(widths)}"


#: Amount and variant of the work of a task. A KeyError says that the size of an input is not known.
WorkRule = Callable[[Sized], tuple[float, str]]
#: Size of the output at an address. A KeyError says that the size of an input is not known.
ShapeRule = Callable[[Sized, Any], Shape]


def one_row(_: Sized, __: Any) -> Shape:
    """Return the size of a table with one row."""
    return Shape(1)


def measures(_: Sized, __: Any) -> Shape:
    """Return the usual size of a table of measures."""
    return Shape(30, row_bytes=60.0)
