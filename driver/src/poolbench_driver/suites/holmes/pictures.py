"""The pictures of a run: entrants by type of phenomenon, and which pooling carries what."""

from __future__ import annotations

from collections import Counter
from typing import Any

from poolbench_driver.pages.drawing import COLOURS, GREY, MUTED, gridded, svg
from poolbench_driver.suites.holmes.metrics import RATE
from poolbench_driver.suites.holmes.view import View

#: What a picture tells apart: as many as there are colours.
_DRAWN = len(COLOURS)
_SIGNS = "osD^vP"


def by_type(view: View) -> str | None:
    """Return the winning rates of the first entrants by type of phenomenon."""
    entrants = [entrant for entrant in view.entrants[:_DRAWN] if entrant.overall["value"] is not None]
    if len(entrants) < 2:
        return None

    def draw(axes: Any) -> None:
        for place, entrant in enumerate(entrants):
            type_rows = [(number, entrant.rates.get(f"{RATE}.{kind}", {})) for number, kind in enumerate(view.types)]
            rows = [(number, row) for number, row in type_rows if row.get("value") is not None]
            shift = (place - (len(entrants) - 1) / 2) * 0.1
            for number, row in rows:
                if row["ci_low"] is not None:
                    ends = [100 * row["ci_low"], 100 * row["ci_high"]]
                    axes.plot(ends, [number + shift] * 2, color=COLOURS[place], lw=1.2, alpha=0.3)
            axes.plot(
                [100 * row["value"] for _, row in rows], [number + shift for number, _ in rows],
                ls="", marker=_SIGNS[place], color=COLOURS[place], ms=6, label=entrant.name,
            )  # fmt: skip
        axes.axvline(50, color=MUTED, lw=0.8, ls=":")
        axes.set_yticks(range(len(view.types)), view.types)
        axes.invert_yaxis()
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2)
        gridded(axes, "winning rate, %", "", axis="x")

    return svg((6.6, 4.4), "holmes", "Winning rates by type of phenomenon", draw)


def by_layer(view: View) -> str | None:
    """Return the strategy that wins most by type of phenomenon and layer; None where one strategy was read."""
    carried = view.carried()
    if not carried:
        return None
    best = Counter(names[0] for winners in carried.values() for names, _ in winners.values())
    looks = {
        name: (COLOURS[place], _SIGNS[place]) if place < _DRAWN else (GREY, ".")
        for place, (name, _) in enumerate(best.most_common())
    }

    def draw(axes: Any) -> None:
        for name, (colour, sign) in looks.items():
            cells = [
                (column, line, winners[layer][1])
                for line, winners in enumerate(carried.values())
                for column, layer in enumerate(view.layers)
                if layer in winners and winners[layer][0][0] == name
            ]
            axes.plot(
                [x for x, _, _ in cells], [y for _, y, _ in cells], ls="", marker=sign, color=colour, ms=9, label=name
            )
            for x, y, rate in cells:
                axes.annotate(
                    f"{100 * rate:.0f} %", (x, y), (9, 0), textcoords="offset points", va="center", fontsize=8
                )
        axes.set_xticks(range(len(view.layers)), view.layers)
        axes.set_xlim(-0.5, len(view.layers) - 0.4)
        axes.set_yticks(range(len(carried)), carried)
        axes.set_ylim(len(carried) - 0.5, -0.5)
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncol=4)
        gridded(axes, "layer", "")

    return svg((6.6, 0.5 * len(carried) + 1.4), "holmes-layers", "Best strategy by type of phenomenon and layer", draw)
