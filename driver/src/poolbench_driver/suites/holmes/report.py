"""What a run of linguistic probing says: which entrant carries most, of which type of phenomenon, and how sure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.suites.drawing import COLOURS, MUTED, gridded, svg
from poolbench_driver.suites.holmes import RATE, SCORE
from poolbench_driver.suites.markdown import table
from poolbench_driver.suites.suite import Report, Section

if TYPE_CHECKING:
    from poolbench_driver.records import RunFolder

#: Entrants that the picture shows: as many as there are colours.
_DRAWN = len(COLOURS)
_SIGNS = "osD^vP"


@dataclass(frozen=True)
class Entrant:
    """A model, strategy and layer: its figures by metric, and its scores by set."""

    name: str
    rates: Mapping[str, Row]
    scores: Mapping[str, Row]
    others: Mapping[str, Sequence[Row]]

    def mean(self, metric: str) -> str:
        """Return the mean of a figure over the sets that have it."""
        values = [row["value"] for row in self.others.get(metric, ()) if row["value"] is not None]
        return f"{fmean(values):.3f}" if values else ""

    def rate(self, kind: str = "") -> str:
        """Return the winning rate in percent, over all sets or those of a type; or why there is none."""
        row = self.rates.get(f"{RATE}.{kind}" if kind else RATE)
        return "" if row is None else row["status"] if row["value"] is None else f"{100 * row['value']:.0f}"

    @cached_property
    def overall(self) -> Row:
        """Return the row of the winning rate over all sets."""
        return self.rates[RATE]

    @property
    def num_collapsed(self) -> int:
        """Return in how many sets the probe predicts one label for all."""
        return sum(bool(row["value"]) for row in self.others.get("probe.collapsed", ()))


@dataclass(frozen=True)
class View:
    """Entrants, the best one first; types of phenomena; sets; and what is wrong with the data."""

    model: str
    entrants: Sequence[Entrant]
    types: Sequence[str]
    sets: Sequence[Row]
    problems: Sequence[str]

    def answer(self) -> str:
        """Return the answer in one sentence or two."""
        best = self.entrants[0]
        if len(self.entrants) == 1:
            return f"{best.name} was probed on {len(self.sets)} sets; name further strategies or layers to compare."
        row = best.overall
        if row["value"] is None:
            return f"No entrant can be compared on the {len(self.sets)} sets, {row['status']}: {row['reason']}."
        said = f"{best.name} leads: it wins {best.rate()} % of its comparisons over {len(self.sets)} sets."
        second = self.entrants[1].overall
        if row["ci_low"] is not None and second["value"] is not None and second["value"] >= row["ci_low"]:
            said += f" {self.entrants[1].name} lies within its interval."
        lost = [kind for kind in self.types if self._leader(kind) not in (best.name, None)]
        return f"{said} It does not lead in {', '.join(lost)}." if lost else said

    def _leader(self, kind: str) -> str | None:
        known = [each for each in self.entrants if each.rates.get(f"{RATE}.{kind}", {}).get("value") is not None]
        return max(known, key=lambda each: each.rates[f"{RATE}.{kind}"]["value"]).name if known else None


def report(folder: RunFolder) -> Report:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    view = _view(folder)
    values = {"view": view, "picture": _picture(view)}
    sections = [
        Section(__name__.rpartition(".")[0], f"{name}.html.j2", values, anchor, label)
        for name, anchor, label in (("first", "", ""), ("board", "leaderboard", "Board"), ("sets", "sets", "Sets"))
    ]
    text = f"{view.answer()}\n\n{_markdown(view)}"
    return Report(f"Holmes: {view.model}", sections, text, text)


def _view(folder: RunFolder) -> View:
    rows = folder.read_table("results").to_pylist()
    sets = folder.read_table("sets").to_pylist()
    entrants = []
    for name in dict.fromkeys(row["entrant"] for row in rows if row["metric"] == SCORE):
        own = [row for row in rows if row["entrant"] == name]
        rates = {row["metric"]: row for row in own if row["metric"].startswith(RATE)}
        scores = {row["task"]: row for row in own if row["metric"] == SCORE}
        others: dict[str, list[Row]] = {}
        for row in own:
            others.setdefault(row["metric"], []).append(row)
        entrants.append(Entrant(name, rates, scores, others))
    entrants.sort(key=lambda each: (each.overall["value"] is None, -(each.overall["value"] or 0.0)))
    notes = [row["note"] for row in folder.read_table("notes").to_pylist()]
    problems = [*_problems(entrants), *notes]
    return View(rows[0]["model"], entrants, sorted({each["type"] for each in sets}), sets, problems)


def _problems(entrants: Sequence[Entrant]) -> Iterator[str]:
    """Yield one line for collapsed probes, for nulls, and for test instances that were seen in train."""
    for each in entrants:
        if each.num_collapsed:
            yield f"{each.name}: the probe predicts one label for all instances of {each.num_collapsed} sets"
        nulls = [row for row in each.scores.values() if row["status"] != Status.OK]
        if nulls:
            yield f"{each.name}: {len(nulls)} sets have no score, {nulls[0]['status']}: {nulls[0]['reason']}"
    seen = {row["task"] for each in entrants for row in each.others.get("probe.seen_share", ()) if row["value"]}
    if seen:
        more = ", ..." if len(seen) > 3 else ""
        yield f"test instances that occur whole in train: in {len(seen)} sets ({', '.join(sorted(seen)[:3])}{more})"


def _picture(view: View) -> Markup | None:
    """Return the winning rates of the first entrants by type of phenomenon."""
    shown = [each for each in view.entrants[:_DRAWN] if each.overall["value"] is not None]
    if len(shown) < 2:
        return None

    def draw(axes: Any) -> None:
        for place, each in enumerate(shown):
            found = [(number, each.rates.get(f"{RATE}.{kind}", {})) for number, kind in enumerate(view.types)]
            known = [(number, row) for number, row in found if row.get("value") is not None]
            shift = (place - (len(shown) - 1) / 2) * 0.1
            for number, row in known:
                if row["ci_low"] is not None:
                    ends = [100 * row["ci_low"], 100 * row["ci_high"]]
                    axes.plot(ends, [number + shift] * 2, color=COLOURS[place], lw=1.2, alpha=0.3)
            axes.plot(
                [100 * row["value"] for _, row in known], [number + shift for number, _ in known],
                ls="", marker=_SIGNS[place], color=COLOURS[place], ms=6, label=each.name,
            )  # fmt: skip
        axes.axvline(50, color=MUTED, lw=0.8, ls=":")
        axes.set_yticks(range(len(view.types)), view.types)
        axes.invert_yaxis()
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2)
        gridded(axes, "winning rate, %", "", axis="x")

    return svg((6.6, 4.4), "holmes", "Winning rates by type of phenomenon", draw)


def _markdown(view: View) -> str:
    head = [
        "entrant",
        "winning rate %",
        "95 % interval",
        *view.types,
        "score",
        "selectivity",
        "compression",
        "collapsed",
    ]
    lines = []
    for each in view.entrants:
        row = each.overall
        interval = "" if row["ci_low"] is None else f"{100 * row['ci_low']:.0f} to {100 * row['ci_high']:.0f}"
        figures = [each.mean(name) for name in (SCORE, "probe.selectivity", "probe.compression")]
        lines.append([each.name, each.rate(), interval, *map(each.rate, view.types), *figures, str(each.num_collapsed)])
    return "\n\n".join([table(head, lines), *(f"- {problem}" for problem in view.problems)])
