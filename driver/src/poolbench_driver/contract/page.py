"""What a suite says about a run: its answer, board, pictures, tables and texts, as data.

A suite fills a `Page`. `poolbench_driver.pages` writes it as HTML and as JSON, and as Markdown without pictures and
`Details`. Texts are plain; words between backticks are set as code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import pydantic

from poolbench_driver.contract.vega import VARIABLES, Spec, drawn, is_drawing

VERSION: Literal[1] = 1  # raised when a reader of the JSON must change

#: Shades of a cell: as many blue ones, and as many orange ones below 0.
NUM_SHADES = 8


T = TypeVar("T")
#: A field that the JSON of a page has only where it says something.
Sparse = Annotated[T, pydantic.Field(exclude_if=lambda value: not value)]


@dataclass(frozen=True)
class Span:
    """A piece of the headline."""

    text: str
    named: bool = False  # whether it names what is compared, and is emphasised


@dataclass(frozen=True)
class Answer:
    """The answer of a run, with how sure it is."""

    headline: Sequence[Span]
    sentences: Sequence[str] = ()  # on its certainty, and on what was measured

    @property
    def text(self) -> str:
        """Return the headline as text."""
        return "".join(span.text for span in self.headline)


@dataclass(frozen=True)
class Problem:
    """A line on what limits the answer, and the part of the page that has the evidence."""

    text: str
    anchor: str = "nulls"


@dataclass(frozen=True)
class Passage:
    """A text with ranges of its characters that are marked."""

    text: str
    marks: Sequence[tuple[int, int]] = ()  # start and end
    shades: Sparse[Sequence[int]] = ()  # one for each mark, as those of a cell; none: marks are set as such


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what is shown, and the number behind it."""

    text: str = ""
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    interval: str = ""  # the interval as text
    note: str = ""  # why it has no value, or what it is made of
    shade: int = 0  # -8 (orange) to 8 (blue)
    sign: str = ""  # stands before the text
    colour: str = ""  # that of the sign, such as `c1`
    passages: Sequence[Passage] = ()  # in place of the text
    opens: Sparse[str] = ""  # what stands behind it: `cells/<cell_id>` of a figure, `entrants/<name>` of a mean


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    head: str
    is_text: bool = False  # whether it is aligned to the left
    has_intervals: bool = False  # whether intervals are drawn beside its numbers, on a common scale
    group: str = ""  # head over this column and its neighbours
    definition: str = ""
    link: Sparse[str] = ""  # address that orders the lines by it
    order: Sparse[Literal["", "ascending", "descending"]] = ""  # how the lines are ordered by it


#: Columns of a table; a text is the head of a column of numbers.
Heads = Sequence[str | Column]


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    cells: Sequence[Cell]
    is_tied: bool = False  # whether it has the blue edge; docs/metrics.md has the rule of each board
    reason: str = ""  # why it has no figures

    @classmethod
    def of(cls, *cells: str | Cell, is_tied: bool = False, reason: str = "") -> Line:
        """Return a line of cells, some of which are texts alone."""
        return cls([Cell(cell) if isinstance(cell, str) else cell for cell in cells], is_tied, reason)


@dataclass(frozen=True)
class Table:
    """A table; the first column names the lines."""

    columns: Sequence[Column]
    lines: Sequence[Line]
    title: str = ""
    note: str = ""  # how it is read
    style: Literal["plain", "dense"] = "plain"
    kind: Literal["table"] = "table"

    @classmethod
    def of(cls, heads: Heads, lines: Iterable[Line], title: str = "", note: str = "") -> Table:
        """Return a table; a head that is a text becomes a column of numbers with that head."""
        return cls([Column(head) if isinstance(head, str) else head for head in heads], list(lines), title, note)


@dataclass(frozen=True)
class Picture:
    """A figure."""

    spec: Annotated[Spec, pydantic.Field(description="Vega-Lite specification with its data, in light colours")]
    captions: Sequence[Cell] = ()
    kind: Literal["picture"] = "picture"

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @cached_property
    def svg(self) -> str:
        """The specification drawn as SVG, in colours that are variables of the page."""
        return drawn(self.spec, VARIABLES)

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _as_written(cls, value: Any, validate: pydantic.ModelWrapValidatorHandler[Picture]) -> Picture:
        """Take the SVG of a written page, because drawing it again takes .1 s."""
        picture = validate(value)
        if isinstance(value, dict) and is_drawing(svg := value.get("svg")):
            vars(picture)["svg"] = svg
        return picture


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str
    kind: Literal["prose"] = "prose"


@dataclass(frozen=True)
class Items:
    """A list."""

    lines: Sequence[str]
    kind: Literal["items"] = "items"


@dataclass(frozen=True)
class Facts:
    """Pairs of name and value."""

    pairs: Sequence[tuple[str, str]]
    kind: Literal["facts"] = "facts"


@dataclass(frozen=True)
class SideBySide:
    """Texts beside each other, each below its caption."""

    texts: Sequence[tuple[str, Passage]]
    kind: Literal["texts"] = "texts"


@dataclass(frozen=True)
class FormField:
    """A choice of the reader: one of some values, or words to look for."""

    name: str  # in the query of the address
    label: str
    value: str = ""
    choices: Sequence[tuple[str, str]] = ()  # value and name


@dataclass(frozen=True)
class Form:
    """Choices that become the query of the page's address, or of another one."""

    fields: Sequence[FormField]
    hidden: Sequence[tuple[str, str]] = ()  # further names and values of the query
    action: str = ""
    button: str = "Show"
    kind: Literal["form"] = "form"


@dataclass(frozen=True)
class Group:
    """Tables or pictures beside each other, as far as there is room."""

    blocks: Sequence[Table | Picture]
    kind: Literal["group"] = "group"


@dataclass(frozen=True)
class Details:
    """Blocks that a page shows folded and that the Markdown leaves out."""

    summary: str
    blocks: Sequence[Table | Picture | Group]
    kind: Literal["details"] = "details"


Block = Table | Picture | Prose | Items | Facts | SideBySide | Form | Group | Details


def with_cells(blocks: Iterable[Any], change: Callable[[Cell], Cell]) -> list[Any]:
    """Return blocks with other cells in their tables."""
    changed = list[Any]()
    for block in blocks:
        if isinstance(block, Table):
            lines = [replace(line, cells=[change(cell) for cell in line.cells]) for line in block.lines]
            changed.append(replace(block, lines=lines))
        elif isinstance(block, Group | Details):
            changed.append(replace(block, blocks=with_cells(block.blocks, change)))
        else:
            changed.append(block)
    return changed


@dataclass(frozen=True)
class Part:
    """A part of the page below the board."""

    anchor: str  # id of its heading
    heading: str
    blocks: Sequence[Block]
    label: str = ""  # its name among the links at the top; empty for none
    note: str = ""  # how it is read
    is_folded: bool = False  # whether a page shows its heading alone until a reader opens it

    def with_cells(self, change: Callable[[Cell], Cell]) -> Part:
        """Return the part with other cells."""
        return replace(self, blocks=with_cells(self.blocks, change))


@dataclass(frozen=True)
class Page:
    """The page of a run, or of several runs together."""

    title: str  # name of the suite
    subject: str  # what was measured
    answer: Answer
    board: Table  # what is compared, the best first
    problems: Sequence[Problem] = ()
    picture: Picture | None = None
    parts: Sequence[Part] = field(default_factory=tuple)
    form: Sparse[Form | None] = None  # what chooses the lines of the board
    version: Literal[1] = VERSION

    def with_parts(self, *parts: Part) -> Page:
        """Return the page with further parts at its end."""
        return replace(self, parts=[*self.parts, *parts])

    def with_cells(self, change: Callable[[Cell], Cell]) -> Page:
        """Return the page with other cells."""
        (board,) = with_cells([self.board], change)
        return replace(self, board=board, parts=[part.with_cells(change) for part in self.parts])
