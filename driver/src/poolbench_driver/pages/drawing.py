"""Figures as inline SVG, in the colours of the page: as light or dark as what stands around them."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import escape

from poolbench_driver.contract.page import Cell

#: What is drawn in a colour has the page's variable in its place.
INK, MUTED, LINES, ACCENT, GREY = "#1b1d21", "#5b616b", "#e3e4e6", "#0b5fff", "#9ca3af"
COLOURS = ("#0f62ad", "#b5460f", "#00795b", "#8a3b8f", "#5d6470", "#7a6a00")
VARIABLES = {INK: "ink", MUTED: "mut", LINES: "line", ACCENT: "acc", GREY: "grey"} | {
    colour: f"c{number}" for number, colour in enumerate(COLOURS, 1)
}
_STYLE: Any = {
    "svg.fonttype": "none", "font.size": 9, "text.color": INK, "axes.labelcolor": MUTED, "axes.edgecolor": LINES,
    "xtick.color": MUTED, "ytick.color": MUTED, "legend.labelcolor": MUTED, "grid.color": LINES,
}  # fmt: skip


#: Pixels of a drawn interval, and of the margin at its ends.
_LENGTH, _MARGIN = 110, 6


def bars(cells: Sequence[Cell]) -> list[tuple[float, float, float] | None]:
    """Return both ends and the middle of each cell's drawn interval, on a common scale; None without a value."""
    ends = [end for cell in cells for end in (cell.value, cell.ci_low, cell.ci_high) if end is not None]
    lowest, span = min(ends, default=0.0), (max(ends, default=0.0) - min(ends, default=0.0)) or 1.0

    def at(value: float) -> float:
        return round(_MARGIN + (_LENGTH - 2 * _MARGIN) * (value - lowest) / span, 1)

    def drawn(cell: Cell) -> tuple[float, float, float] | None:
        if cell.value is None:
            return None
        low, high = (cell.value if end is None else end for end in (cell.ci_low, cell.ci_high))
        return at(low), at(cell.value), at(high)

    return [drawn(cell) for cell in cells]


def gridded(axes: Any, across: str, up: str, axis: str = "both") -> None:
    """Draw a pale grid behind the points, in place of a frame, and name the axes."""
    axes.grid(axis=axis, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def svg(size: tuple[float, float], salt: str, title: str, draw: Callable[[Any], None]) -> str:
    """Return a figure as SVG; the salt makes its ids reproducible, and readers of a screen hear the title."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    drawn = re.sub(
        r"^.*?<svg", f'<svg role="img" aria-label="{escape(title)}"', buffer.getvalue(), count=1, flags=re.DOTALL
    )
    return re.sub("|".join(VARIABLES), lambda found: f"var(--{VARIABLES[found[0]]})", drawn)
