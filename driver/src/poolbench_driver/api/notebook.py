"""Tables, pictures and parts of a page. Notebooks draw them as static HTML, and `print` writes them as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.errors import ConfigError, InputError, UnknownNameError

if TYPE_CHECKING:
    import pyarrow as pa

    from poolbench_driver.contract.page import Answer, Block, Part, Picture, Table

#: Rows of a table, and characters of a cell, that a notebook draws.
_MOST_ROWS, _MOST_CHARACTERS = 20, 100


class Shown:
    """Base class of objects that a notebook draws as static HTML (light or dark) and `print` writes as Markdown."""

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        """Return the parts of a page to draw, and the answer above them or None."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        from poolbench_driver.pages.html import notebook_html

        return notebook_html(*self._view())

    def __str__(self) -> str:
        from poolbench_driver.pages.text import block_markdown

        answer, parts = self._view()
        lines = [] if answer is None else [" ".join([answer.text, *answer.sentences])]
        for part in parts:
            lines += [part.heading, part.note, *(text for block in part.blocks for text in block_markdown(block))]
        return "\n\n".join(filter(None, lines))

    def __repr__(self) -> str:
        return str(self)


def part_of(*blocks: Block, heading: str = "", note: str = "") -> Part:
    """Make a part of a page from blocks."""
    from poolbench_driver.contract.page import Part

    return Part("part", heading, blocks, note=note)


@dataclass(frozen=True, repr=False)
class View(Shown):
    """Parts of a page, and the answer above them.

    Attributes:
        parts: The parts of the page, with their headings and blocks.
        answer: The answer above the parts, or None.
    """

    parts: Sequence[Part]
    answer: Answer | None = None

    @property
    def text(self) -> str:
        """Return the headline of the answer, or an empty text if there is no answer."""
        return "" if self.answer is None else self.answer.text

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        return self.answer, self.parts


class Rows(Shown):
    """A table that pandas, polars and all readers of Arrow's C stream, such as DuckDB, can take.

    Iterating yields one dictionary per row.

    Attributes:
        arrow: The table as a `pyarrow.Table`.
    """

    def __init__(self, arrow: pa.Table) -> None:
        self.arrow = arrow

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns, in order."""
        return list(self.arrow.column_names)

    def to_pandas(self) -> Any:
        """Convert the table to a `pandas.DataFrame`. Raise ConfigError if pandas is not installed."""
        _optional("pandas")
        return self.arrow.to_pandas()

    def to_polars(self) -> Any:
        """Convert the table to a `polars.DataFrame`. Raise ConfigError if polars is not installed."""
        return _optional("polars").from_arrow(self.arrow)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Convert the table to a list of one dictionary per row."""
        return list(self.arrow.to_pylist())

    def where(self, **values: Any) -> Rows:
        """Select the rows in which columns have the given values, such as `where(concept="contrast", layer=3)`.

        Args:
            **values: One value per column; None selects the rows in which the column is null.

        Returns:
            The selected rows, of which there is at least one.

        Raises:
            UnknownNameError: A column does not exist, or no row has the value.
            InputError: A value is a list or another collection.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        from poolbench_driver.queries.plain_values import plain

        table = self.arrow
        for name, value in plain(values).items():
            if name not in self.columns:
                raise UnknownNameError("column", name, self.columns)
            column = table[name]
            if not (value is None or isinstance(value, str | int | float)):
                raise InputError(f"{name} is a {type(value).__name__}; give one value")
            try:
                table = table.filter(pc.is_null(column) if value is None else pc.equal(column, value))
            except pa.ArrowException:  # a text beside numbers, or a number beside texts
                table = table.slice(0, 0)
            if not len(table):
                raise UnknownNameError(name, str(value), map(str, column.unique().to_pylist()))
        return Rows(table)

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_pylist())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.arrow.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(self.columns)})"

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.contract.page import Column, Line, Table

        rows = self.arrow.slice(0, _MOST_ROWS).to_pylist()
        heads = [Column(name, is_text=any(isinstance(row[name], str) for row in rows)) for name in self.columns]
        lines = [Line.of(*(_cell_text(row[name]) for name in self.columns)) for row in rows]
        note = f"{_MOST_ROWS} of {len(self):,} rows" if len(self) > _MOST_ROWS else ""
        return None, [part_of(Table(heads, lines, note=note))]


def _cell_text(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _optional(package: str) -> Any:
    """Import an optional package. Raise ConfigError if it is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ConfigError(f"this needs {package}, which is not installed here: pip install {package}") from None


class Board(Rows):
    """The board of a run: one row per entrant (for example a pooling strategy), the best first.

    A column of figures holds numbers, and a column of texts holds texts. A figure with an interval has two further
    columns, whose names end with `low` and `high`.

    Attributes:
        table: The board as a block of the page.
    """

    def __init__(self, table: Table) -> None:
        self.table = table

    @cached_property
    def arrow(self) -> pa.Table:  # type: ignore[override]
        """Return the board as an Arrow table."""
        import pyarrow as pa

        columns = list[tuple[str, list[Any]]]()
        for place, column in enumerate(self.table.columns):
            name = f"{column.group} {column.head}".strip()
            cells = [line.cells[place] if place < len(line.cells) else None for line in self.table.lines]
            has_values = any(cell is not None and cell.value is not None for cell in cells)
            columns.append((name, [cell and (cell.value if has_values else cell.text) for cell in cells]))
            if column.has_intervals:
                columns.append((f"{name} low", [cell and cell.ci_low for cell in cells]))
                columns.append((f"{name} high", [cell and cell.ci_high for cell in cells]))
        return pa.Table.from_arrays([pa.array(cells) for _, cells in columns], [name for name, _ in columns])

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        return None, [part_of(self.table)]


@dataclass(frozen=True, repr=False)
class Chart(Shown):
    """A picture of a run.

    Attributes:
        picture: The picture as a block of the page; `picture.spec` is its Vega-Lite specification with the data.
    """

    picture: Picture

    def save(self, path: Path | str) -> Path:
        """Write the picture to a file.

        Args:
            path: File to write. Its ending selects the format: `.svg`, `.pdf` or `.png`.

        Returns:
            The path of the file.

        Raises:
            InputError: The path has another ending, or the file cannot be written.
        """
        from poolbench_driver.contract.vega import FORMATS, rendered

        path = Path(path)
        form = path.suffix.lower().removeprefix(".")
        if form not in FORMATS:
            raise InputError(f"{path}: a picture is saved as {', '.join(f'.{name}' for name in FORMATS)}")
        try:
            path.write_bytes(rendered(self.picture.spec, form))
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
        return path

    def __str__(self) -> str:
        return str(self.picture.spec.get("description", ""))

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        return None, [part_of(self.picture)]
