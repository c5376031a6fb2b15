"""The picture of a run: score against L0, a sign for each width, a colour for each architecture."""

from __future__ import annotations

from typing import Any

from poolbench_driver.pages.drawing import COLOURS, GREY, INK, MUTED, gridded, svg
from poolbench_driver.suites.ce_bench.entrant import AUTOENCODER, COORDINATES, RANDOM, Entrant
from poolbench_driver.suites.ce_bench.metrics import L0, PRIMARY, WIDTH
from poolbench_driver.suites.ce_bench.view import View

_SIGNS = "osD^vP"


def picture(view: View) -> str | None:
    """Return the score of each entrant against its L0, with intervals; None without an autoencoder."""
    if not view.trained:
        return None
    entrants = [
        entrant
        for entrant in view.entrants
        if entrant.value(PRIMARY) is not None and (entrant.value(L0) or 0) > 0 and entrant.value(WIDTH)
    ]
    widths = sorted({entrant.value(WIDTH) or 0.0 for entrant in entrants if entrant.kind != COORDINATES})
    architectures = sorted({str(entrant.architecture) for entrant in view.trained})

    def look(entrant: Entrant) -> tuple[str, str, str]:
        """Return sign, colour, and what the legend calls the colour."""
        sign = "x" if entrant.kind == COORDINATES else _SIGNS[widths.index(entrant.value(WIDTH) or 0.0) % len(_SIGNS)]
        if entrant.kind != AUTOENCODER:
            return sign, GREY, "random directions" if entrant.kind == RANDOM else "coordinates"
        return sign, COLOURS[architectures.index(str(entrant.architecture)) % len(COLOURS)], str(entrant.architecture)

    def draw(axes: Any) -> None:
        for entrant in entrants:
            sign, colour, _ = look(entrant)
            row, l0, is_autoencoder = entrant.figures[PRIMARY], entrant.value(L0), entrant.kind == AUTOENCODER
            if row["ci_low"] is not None:
                axes.plot([l0, l0], [row["ci_low"], row["ci_high"]], color=colour, lw=1.2, alpha=0.35)
            axes.plot([l0], [row["value"]], ls="", marker=sign, color=colour, ms=8 if is_autoencoder else 5.5)
        best = view.trained[0]
        axes.annotate(
            best.name.replace("$", r"\$"), (best.value(L0), best.value(PRIMARY)), (8, 4),
            textcoords="offset points", fontsize=10, fontweight="bold", color=INK,
        )  # fmt: skip
        for sign, colour, label in dict.fromkeys(
            ("x" if entrant.kind == COORDINATES else "s", look(entrant)[1], look(entrant)[2]) for entrant in entrants
        ):
            axes.plot([], [], ls="", marker=sign, color=colour, label=label, ms=6)
        for number, width in enumerate(widths):
            axes.plot([], [], ls="", marker=_SIGNS[number % len(_SIGNS)], color=MUTED, mfc="none", ms=6,
                      label=f"{width:,.0f} features")  # fmt: skip
        _readable(axes)

    return svg((6.6, 4.6), "ce-bench", "Score against L0", draw)


def _readable(axes: Any) -> None:
    """Write L0 as plain numbers, leave room for a name, and put the legend below."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.12)
    axes.legend(fontsize=9, frameon=False, ncol=4, loc="upper center", bbox_to_anchor=(0.47, -0.13), columnspacing=1.2,
                handletextpad=0.1)  # fmt: skip
    gridded(axes, "L0: features per token", "interpretability, divided by the root of the width")
