"""Pictures of a run: words before and after, the change by epochs and sentences, one word in place of a list."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from poolbench.contracts import Row
from poolbench_driver.pages.drawing import ACCENT, COLOURS, GREY, INK, gridded, svg
from poolbench_driver.suites.humanoid.cosines import LISTS
from poolbench_driver.suites.humanoid.metrics import PRIMARY
from poolbench_driver.suites.humanoid.view import NAMED, Tune


def arrows(line: Tune) -> str:
    """Return the words before and after a fine-tune in the plane of the first two principal components."""
    placed = [row for row in line.words if row["x_before"] is not None]
    domain = [row for row in placed if row["group"] == "domain"]
    label_words = {row["word"] for row in domain[:NAMED]} | set(line.favourites)

    def draw(axes: Any) -> None:
        for group, sign, colour in (("positive", "$+$", COLOURS[2]), ("negative", "$-$", COLOURS[1])):
            words = [row for row in placed if row["group"] == group]
            axes.plot(
                [r["x_after"] for r in words], [r["y_after"] for r in words], ls="", marker=sign, color=colour, ms=6
            )
        for row in domain:
            strong = row["word"] in label_words
            axes.annotate(
                "", (row["x_after"], row["y_after"]), (row["x_before"], row["y_before"]),
                arrowprops={"arrowstyle": "->", "color": ACCENT if strong else GREY, "lw": 1.6 if strong else 0.8,
                            "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
            if strong:
                place = (row["x_after"], row["y_after"])
                axes.annotate(
                    row["word"], place, (5, 4), textcoords="offset points", fontweight="bold", color=INK,
                    parse_math=False,  # a word may hold dollars
                )  # fmt: skip
        axes.plot([r["x_before"] for r in domain], [r["y_before"] for r in domain], ".", color=GREY, ms=3)
        gridded(axes, "first principal component", "second principal component")

    return svg((6.6, 4.4), "preference shift", f"Words before and after {line.name}", draw)


def by_amount(tunes: Sequence[Tune], axes: Sequence[str], neutral: float | None) -> str:
    """Return the change of variance by the first axis, with a line for each number of the second, if there is one."""
    across, *others = axes
    groups: dict[float | None, list[Tune]] = {}
    for tune in tunes:
        groups.setdefault(tune.amounts[others[0]] if others else None, []).append(tune)

    def draw(axes: Any) -> None:
        for place, (amount, group) in enumerate(sorted(groups.items(), key=lambda item: item[0] or 0.0)):
            colour = COLOURS[place % len(COLOURS)]
            values: dict[float, list[float]] = {}
            for tune in group:
                row, at = tune.figures[PRIMARY], tune.amounts[across]
                values.setdefault(at, []).append(row["value"])
                if row["ci_low"] is not None:
                    axes.plot([at, at], [row["ci_low"], row["ci_high"]], color=colour, lw=0.8, alpha=0.5)
                axes.plot([at], [row["value"]], "o", color=colour, ms=4)
            label = None if amount is None else f"{amount:g} {others[0]}"
            places = sorted(values)
            axes.plot(places, [fmean(values[at]) for at in places], color=colour, lw=1.5, label=label)
        if neutral is not None:
            axes.axhline(neutral, color=GREY, lw=1, ls="--", label="mean of the neutral fine-tunes")
        if others or neutral is not None:
            axes.legend(frameon=False, fontsize=8)
        gridded(axes, across, f"change of variance ({PRIMARY})")

    return svg((5.6, 3.4), "change by amount", f"Change of variance by {' and '.join([across, *others])}", draw)


def single_words(rows: Sequence[Row]) -> str:
    """Return the change of variance with each word in place of its list, as bars from the top."""

    def draw(axes: Any) -> None:
        colours = dict(zip(LISTS, (COLOURS[2], COLOURS[1]), strict=True))
        places = range(len(rows), 0, -1)
        axes.barh(places, [row["variance"] for row in rows], 0.7, color=[colours[row["list"]] for row in rows])
        axes.axvline(0, color=GREY, lw=0.8)
        axes.set_yticks(list(places), [row["word"] for row in rows], parse_math=False)
        axes.set_ylim(0.3, len(rows) + 0.7)
        gridded(axes, f"change of variance ({PRIMARY})", "", axis="x")

    return svg((4.6, 0.7 + 0.19 * len(rows)), "single words", "Change of variance by the word that is left", draw)
