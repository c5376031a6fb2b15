"""What a run of CE-Bench says: which autoencoder separates best, what was not trained, and a subject opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.suites.ce_bench import HELD_OUT, LOG_WIDTH, MINUS_L0, PRIMARY
from poolbench_driver.suites.ce_bench.concepts import readers
from poolbench_driver.suites.drawing import ACCENT, COLOURS, GREY, gridded, svg
from poolbench_driver.suites.markdown import table
from poolbench_driver.suites.suite import Report, Section

if TYPE_CHECKING:
    from poolbench_driver.records import RunFolder

_CONTRASTIVE, _INDEPENDENT, _EXCESS = "ce.contrastive", "ce.independent", "ce.interpretability.excess"
_COLUMNS = (PRIMARY, _CONTRASTIVE, _INDEPENDENT, _EXCESS, HELD_OUT)
_SIGNS = "osD^vP"
#: Share of dead features from which a line of the page says so.
_MANY_DEAD = 0.5
#: Features that the page shows of the opened subject.
_STRONGEST = 5


@dataclass(frozen=True)
class Entrant:
    """An autoencoder, its random twin, or the coordinates of a layer, with its figures by metric."""

    name: str
    kind: str
    layer: int
    architecture: str | None
    figures: Mapping[str, Row]

    def value(self, metric: str) -> float | None:
        """Return a figure; None where there is none."""
        value: float | None = self.figures.get(metric, {}).get("value")
        return value

    def text(self, metric: str) -> str:
        """Return a figure as text, or why there is none."""
        row = self.figures.get(metric)
        return "" if row is None else row["status"] if row["value"] is None else f"{row['value']:.3f}"

    def count(self, metric: str) -> str:
        """Return a figure that counts something, as text."""
        value = self.value(metric)
        return "" if value is None else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"

    @cached_property
    def interval(self) -> str:
        """Return the interval of the score."""
        row = self.figures.get(PRIMARY, {})
        return "" if row.get("ci_low") is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"


@dataclass(frozen=True)
class Opened:
    """One subject as an entrant sees it: its first pair of stories with marks, and its strongest features."""

    subject: str
    first: Markup
    second: Markup
    features: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class View:
    """Entrants, the best one first; what is wrong with the data; what size alone explains; and an opened subject."""

    model: str
    entrants: Sequence[Entrant]
    num_subjects: int
    problems: Sequence[str]
    opened: Opened | None

    @property
    def trained(self) -> list[Entrant]:
        """Return the autoencoders that have a score."""
        return [each for each in self.entrants if each.kind == "autoencoder" and each.value(PRIMARY) is not None]

    def twin(self, of: Entrant) -> Entrant | None:
        """Return the random directions of the same width and L0."""
        return next((each for each in self.entrants if each.name == f"{of.name} random"), None)

    def answer(self) -> str:
        """Return the answer in a few sentences."""
        if not self.trained:
            return "No autoencoder has a score."
        best = self.trained[0]
        beaten = [each for each in self.trained if self._beats(each)]
        twin = self.twin(best)
        said = f"{best.name} separates the stories of {self.num_subjects} subjects best: {PRIMARY} {best.text(PRIMARY)}"
        said += f", and {twin.text(PRIMARY)} for random directions of its width and L0." if twin else "."
        count = f"{len(beaten)} of {len(self.trained)} autoencoders" if beaten else "No autoencoder"
        said += f" {count} beat{'s' if len(beaten) == 1 or not beaten else ''} both its random directions and the "
        held = max(self.trained, key=lambda each: each.value(HELD_OUT) or 0.0)
        said += "coordinates of the layer."
        if held.value(HELD_OUT) is not None:
            said += f" One feature tells an unseen pair apart in {100 * (held.value(HELD_OUT) or 0):.0f} % of cases"
            said += f" at best ({held.name}; chance 50 %)."
        return said

    def _beats(self, one: Entrant) -> bool:
        """Return whether the score of an autoencoder is above that of its twin and of the coordinates of its layer."""
        others = [each for each in self.entrants if each.kind == "coordinates" and each.layer == one.layer]
        known = [each.value(PRIMARY) for each in (self.twin(one), *others) if each is not None]
        return all(value is not None and (one.value(PRIMARY) or 0) > value for value in known)

    def by_size(self) -> list[tuple[str, str, str]]:
        """Return, for scores and scores of size, in which share of the pairs of autoencoders they agree."""
        found = []
        for score in (PRIMARY, _CONTRASTIVE, _INDEPENDENT, HELD_OUT):
            shares = (_agreement(self.trained, score, size) for size in (MINUS_L0, LOG_WIDTH))
            found.append((score, *("" if share is None else f"{100 * share:.0f} %" for share in shares)))
        return [(name, l0, width) for name, l0, width in found]


def _agreement(entrants: Sequence[Entrant], first: str, second: str) -> float | None:
    """Return the share of the pairs of entrants that two scores order alike, ties one half."""
    hits = []
    for a, b in combinations(entrants, 2):
        values = [each.value(metric) for metric in (first, second) for each in (a, b)]
        if None in values:
            continue
        own, other = values[0] - values[1], values[2] - values[3]  # type: ignore[operator]
        hits.append(0.5 if own == 0 or other == 0 else float((own > 0) == (other > 0)))
    return sum(hits) / len(hits) if hits else None


def report(folder: RunFolder) -> Report:
    """Return the page of a run from its tables. Raise NotFoundError if the run has no results yet."""
    view = _view(folder)
    values = {"view": view, "picture": _picture(view), "columns": _COLUMNS}
    sections = [
        Section(__name__.rpartition(".")[0], f"{name}.html.j2", values, anchor, label)
        for name, anchor, label in (
            ("first", "", ""),
            ("board", "leaderboard", "Board"),
            ("subject", "subject", "Subject"),
        )
    ]
    if found := readers(folder.read_table("results").to_pylist()):
        shown = {"readers": found, "concepts": list(dict.fromkeys(name for each in found for name in each.values))}
        sections.append(Section(__name__.rpartition(".")[0], "concepts.html.j2", shown, "concepts", "Concepts"))
    text = f"{view.answer()}\n\n{_markdown(view)}"
    return Report(f"CE-Bench: {view.model}", sections, text, text)


def _view(folder: RunFolder) -> View:
    rows = folder.read_table("results").to_pylist()
    figures: dict[str, dict[str, Row]] = {}
    for row in rows:
        figures.setdefault(row["entrant"], {})[row["metric"]] = row
    entrants = [
        Entrant(each["entrant"], each["kind"], each["layer"], each["architecture"], figures.get(each["entrant"], {}))
        for each in folder.read_table("entrants").to_pylist()
    ]
    entrants.sort(key=lambda each: -(each.value(PRIMARY) or 0.0))
    subjects = folder.read_table("subjects").to_pylist()
    notes = [row["note"] for row in folder.read_table("notes").to_pylist()]
    num_subjects = len({row["subject"] for row in subjects})
    problems = [*_problems(entrants), *notes]
    view = View(rows[0]["model"], entrants, num_subjects, problems, None)
    opened = _opened(view, subjects, folder.read_table("stories").to_pylist())
    return View(view.model, entrants, num_subjects, problems, opened)


def _problems(entrants: Sequence[Entrant]) -> Iterator[str]:
    for each in entrants:
        row = each.figures.get(PRIMARY)
        if row is not None and row["status"] != Status.OK:
            yield f"{each.name}: no score, {row['status']}: {row['reason']}"
        coverage = None if row is None else row["coverage"]
        if coverage is not None and coverage < 1 and each.kind == "autoencoder":
            yield f"{each.name}: {100 * (1 - coverage):.0f} % of the pairs are left out"
        dead = each.value("ce.dead_share")
        if each.kind == "autoencoder" and dead is not None and dead > _MANY_DEAD:
            yield f"{each.name}: {100 * dead:.0f} % of its features are zero on all stories"


def _opened(view: View, subjects: Sequence[Row], stories: Sequence[Row]) -> Opened | None:
    """Return the subject that the best autoencoder separates most clearly."""
    if not view.trained:
        return None
    name = view.trained[0].name
    own = [row for row in subjects if row["entrant"] == name and row["contrastive"] is not None]
    texts = {row["subject"]: row for row in stories}
    if not own:
        return None
    best = max(own, key=lambda row: row["contrastive"])
    pair = texts[best["subject"]]
    first, second = (_marked(pair[side], pair[f"{side}_marks"]) for side in ("first", "second"))
    return Opened(best["subject"], first, second, best["features"][:_STRONGEST])


def _marked(text: str, marks: Sequence[Mapping[str, int]] | None) -> Markup:
    """Return a text with its marked ranges."""
    parts, done = [], 0
    for mark in sorted(marks or (), key=lambda mark: mark["start"]):
        if mark["start"] < done:
            continue
        inside = escape(text[mark["start"] : mark["end"]])
        parts += [escape(text[done : mark["start"]]), Markup("<mark>"), inside, Markup("</mark>")]
        done = mark["end"]
    return Markup("").join([*parts, escape(text[done:])])


def _picture(view: View) -> Markup | None:
    """Return the score against L0; a sign for each width, a colour for each architecture."""
    shown = [
        each
        for each in view.entrants
        if each.value(PRIMARY) is not None and (each.value("ce.l0") or 0) > 0 and each.value("ce.num_features")
    ]
    if not view.trained:
        return None
    widths = sorted({each.value("ce.num_features") or 0.0 for each in shown if each.kind != "coordinates"})
    architectures = sorted({str(each.architecture) for each in view.trained})

    def look(each: Entrant) -> tuple[str, str, str]:
        if each.kind == "coordinates":
            return "x", GREY, each.name
        sign = _SIGNS[widths.index(each.value("ce.num_features") or 0.0) % len(_SIGNS)]
        if each.kind == "random":
            return sign, GREY, "random directions"
        return sign, COLOURS[architectures.index(str(each.architecture)) % len(COLOURS)], str(each.architecture)

    def draw(axes: Any) -> None:
        for each in shown:
            sign, colour, _ = look(each)
            row, l0 = each.figures[PRIMARY], each.value("ce.l0")
            if row["ci_low"] is not None:
                axes.plot([l0, l0], [row["ci_low"], row["ci_high"]], color=colour, lw=1.2, alpha=0.35)
            own = each.kind == "autoencoder"
            axes.plot(
                [l0], [row["value"]], ls="", marker=sign, color=colour, ms=7 if own else 5, alpha=1 if own else 0.7
            )
        for label, colour in dict.fromkeys((look(each)[2], look(each)[1]) for each in shown):
            axes.plot([], [], ls="", marker="s", color=colour, label=label, ms=5)
        for width in widths:
            axes.plot([], [], ls="", marker=_SIGNS[widths.index(width) % len(_SIGNS)], color=ACCENT, mfc="none",
                      label=f"{width:,.0f} features")  # fmt: skip
        axes.set_xscale("log")
        axes.legend(fontsize=7, frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
        gridded(axes, "L0: features per token", PRIMARY)

    return svg((6.6, 4.4), "ce-bench", "Score against L0", draw)


def _markdown(view: View) -> str:
    head = [
        "entrant",
        "layer",
        "d",
        "L0",
        "unexplained",
        *(name.removeprefix("ce.") for name in _COLUMNS),
        "95 % interval",
    ]
    lines = [
        [
            each.name,
            str(each.layer),
            each.count("ce.num_features"),
            each.count("ce.l0"),
            each.text("ce.unexplained_variance"),
            *map(each.text, _COLUMNS),
            each.interval,
        ]
        for each in view.entrants
    ]
    agreement = table(["score", "agrees with -L0", "with log2 d"], [list(row) for row in view.by_size()])
    parts = [table(head, lines)]
    if len(view.trained) > 1:
        parts.append(f"Share of the pairs of autoencoders that a score orders as size alone does:\n\n{agreement}")
    return "\n\n".join([*parts, *(f"- {problem}" for problem in view.problems)])
