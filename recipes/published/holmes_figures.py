"""Figures of recorded tables of Holmes: types of phenomena, another table, sizes of models, shares of the data.

All are by winning rates over pairs of models, with intervals from a bootstrap over phenomena.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from recipes.published.flash import chosen

from poolbench.errors import InputError
from poolbench.statistics.bootstrap import group_weights
from poolbench_driver.contract.source import read_csv
from poolbench_driver.contract.vega import Spec, drawn
from poolbench_driver.pages.drawing import chart, looks_of, name_axis, number_axis, picture, points, trends
from poolbench_driver.pages.text import paragraph, table, with_interval
from poolbench_driver.statistics.winning_rate import winning_rate_resamples
from poolbench_driver.suites.holmes.correlations import (
    OVERALL,
    Estimate,
    estimated,
    rates_by_type,
    tau_of,
    type_taus,
)
from poolbench_driver.suites.holmes.recordings import NUM_RESAMPLES, PORTION, ScoreTable, read_scores

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
#: Marks of the page between which the figures stand.
_BEGIN, _END = "<!-- written by recipes/published/holmes_figures.py -->", "<!-- end of figures -->"
COMMAND = "recipes.published holmes-figures holmes_results_f1.csv flash-holmes.csv"
#: Series of models that differ in size, by a pattern of their names whose group is the size.
SERIES = {
    "Pythia": r"EleutherAI/pythia-([\d.]+[mb])",
    "Pythia, deduplicated": r"EleutherAI/pythia-([\d.]+[mb])-deduped",
    "T5, LM-adapted": r"google/t5-(\w+)-lm-adapt",
    "FLAN-T5": r"google/flan-t5-(\w+)",
    "Llama 2": r"meta-llama/Llama-2-(\d+b)-hf",
    "Llama 2 chat": r"meta-llama/Llama-2-(\d+b)-chat-hf",
}
#: Parameters of sizes that have a name, in millions, as Chung et al. (2022), "Scaling instruction-finetuned language
#: models", give them.
_NAMED_SIZES = {"small": 80.0, "base": 250.0, "large": 780.0, "xl": 3000.0, "xxl": 11000.0}


@dataclass(frozen=True)
class Point:
    """A point of a picture, with its interval."""

    x: float | str
    y: float
    ends: tuple[float, float] | None = None


def scatter(title: str, series: Mapping[str, Sequence[Point]], x: Spec, up: str) -> str:
    """Return points with their intervals as SVG, one colour and sign per series; on an axis of numbers, joined.

    Args:
        x: Axis across.
        up: Name of the axis up.
    """
    rows = [
        {
            "x": point.x, "y": point.y, "series": name,
            "low": point.ends and point.ends[0], "high": point.ends and point.ends[1],
            "says": f"{name} {point.x}: {with_interval(point.y, point.ends, '.2f')}".strip(),
        }
        for name, points_of in series.items()
        for point in points_of
    ]  # fmt: skip
    layers = [*([trends(rows)] if x["type"] == "quantitative" else []), points(rows, 30)]
    drawing = picture(title, chart(layers, x, number_axis(up), 250, looks_of(series), has_legend=any(series)))
    return drawn(drawing.spec)


def rates_of(scores_MN: np.ndarray, phenomena_N: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return the winning rates of M models in percent, and then those of a bootstrap over phenomena [1 + R, M]."""
    weights_RN = group_weights(phenomena_N, NUM_RESAMPLES, seed)
    return 100 * winning_rate_resamples(scores_MN, np.concatenate([np.ones((1, len(phenomena_N))), weights_RN]))


def common(first: ScoreTable, second: ScoreTable) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the scores of two tables on their common models and sets, and types and phenomena of these sets.

    Raise InputError if they share fewer than three models or no set.
    """
    models = [name for name in first.models if name in set(second.models)]
    sets = [name for name in first.sets if name in set(second.sets)]
    if len(models) < 3 or not sets:
        raise InputError(f"the tables share {len(models)} models and {len(sets)} sets; 3 models and a set are needed")
    one, other = (chosen(board.scores, (board.models, models), (board.sets, sets)) for board in (first, second))
    places = [list(first.sets).index(name) for name in sets]
    return one, other, first.types[places], first.phenomena[places]


def other_taus(first: ScoreTable, second: ScoreTable) -> dict[str, Estimate]:
    """Return the correlation of the winning rates in two tables, over all common sets and by type."""
    one, other, types, phenomena = common(first, second)
    taus = {}
    for kind in ("", *first.kinds):
        of = (types == kind) if kind else np.ones(len(types), dtype=bool)
        if of.any():
            taus[kind or "all sets"] = tau_of(*(rates_of(scores[:, of], phenomena[of]) for scores in (one, other)))
    return taus


def rank_changes(first: ScoreTable, second: ScoreTable) -> tuple[Estimate, Estimate, Estimate]:
    """Return tau, the 95th percentile of rank changes, and 1.96 sd / root of models, of two tables on common sets."""
    from scipy import stats

    one, other, _, phenomena = common(first, second)
    rates = rates_of(one, phenomena), rates_of(other, phenomena)
    measured_M = np.isfinite(rates[0][0]) & np.isfinite(rates[1][0])
    ranks = [stats.rankdata(-rates_RM[:, measured_M], axis=1) for rates_RM in rates]
    changes_RM = ranks[0] - ranks[1]
    high_R = np.percentile(np.abs(changes_RM), 95, axis=1)
    error_R = 1.96 * changes_RM.std(axis=1, ddof=1) / np.sqrt(changes_RM.shape[1])
    tau = tau_of(*rates)
    high, error = (estimated(float(values[0]), values[1:], 0.0) for values in (high_R, error_R))
    return tau, high, error


def sizes(models: Sequence[str], pattern: str) -> dict[str, float]:
    """Return the parameters, in millions, of the models whose name has a pattern, the smallest first."""
    matches = {name: re.fullmatch(pattern, name) for name in models}
    parameters = {name: _parameters(match[1]) for name, match in matches.items() if match is not None}
    return dict(sorted(parameters.items(), key=lambda item: item[1]))


def _parameters(size: str) -> float:
    """Return the parameters of a size such as 410m, 1.4b or xl, in millions."""
    if size in _NAMED_SIZES:
        return _NAMED_SIZES[size]
    return float(size[:-1]) * (1000 if size[-1] == "b" else 1)


def write(whole_file: Path, shares_file: Path, folder: Path = FOLDER) -> str:
    """Write the figures into their page, and its pictures; return what was written.

    Args:
        whole_file: Table with all of the training data.
        shares_file: Table with several shares of it.
        folder: Folder to write into.
    """
    whole = read_scores(whole_file)
    lines = read_csv(shares_file, [PORTION])[1]
    shares = {share: read_scores(shares_file, share) for share in sorted({line.number(PORTION) for line in lines})}
    parts = [_HEAD, _types(whole, shares, folder), _sizes(whole, folder), _portions(whole, shares, folder)]
    page = folder / "holmes-recorded.md"
    before, begin, rest = page.read_text("utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise InputError(f"{page} lacks the marks {_BEGIN} and {_END}, between which the figures stand")
    page.write_text("\n\n".join([before + begin, *parts, end + after]), "utf-8")
    return f"wrote {page} and three pictures beside it"


#: What the figures between the marks of the page are of.
_HEAD = paragraph(
    "The figures from here on are by pairs of models. Correlations are Kendall's tau over models, and intervals 1.96 "
    f"standard deviations of a bootstrap over phenomena on both sides. `python -m {COMMAND}` writes them."
)


def _types(whole: ScoreTable, shares: Mapping[float, ScoreTable], folder: Path) -> str:
    """Write the picture of correlations between types; return their table, and that with another table."""
    taus = type_taus(rates_by_type(whole))
    pairs = {", ".join(types): tau for types, tau in taus.items() if OVERALL not in types}
    series = {"": [Point(name, tau.value, tau.ends) for name, tau in pairs.items()]}
    across = name_axis(pairs, labelAngle=-30)
    svg = scatter("Correlation of winning rates between types", series, across, "Kendall's tau")
    (folder / "holmes-types.svg").write_text(svg, "utf-8")
    (one, least), *_, (other, most) = sorted(pairs.items(), key=lambda pair: pair[1].value)
    share = min(shares, key=lambda portion: abs(portion - 1 / 32))
    others = other_taus(whole, shares[share])
    return "\n\n".join(
        [
            "## Do the types order models alike?",
            "![Kendall's tau of the winning rates of each two types](holmes-types.svg)",
            paragraph(
                f"From {_shown(least)} of {' and '.join(one.split(', '))} to {_shown(most)} of "
                f"{' and '.join(other.split(', '))}, with intervals of 95 %. The same of two tables: "
                f"all of the training data against {_fraction(share)} of it, over the models and sets that both have."
            ),
            table(("sets", "Kendall's tau (95 % interval)"), [(name, _shown(tau)) for name, tau in others.items()]),
        ]
    )


def _sizes(whole: ScoreTable, folder: Path) -> str:
    """Write the picture of winning rates by size; return the table of its smallest and largest, with the types."""
    overall = rates_of(whole.scores, whole.phenomena)
    by_type = {kind: rates_of(whole.of(kind), whole.phenomena[whole.types == kind])[0] for kind in whole.kinds}
    series: dict[str, list[Point]] = {}
    lines = []
    for name, pattern in SERIES.items():
        rows = []
        for model, parameters in sizes(whole.models, pattern).items():
            place = list(whole.models).index(model)
            rate = estimated(float(overall[0, place]), overall[1:, place], 0.0, 100.0)
            point = Point(parameters, rate.value, rate.ends)
            series.setdefault(name, []).append(point)
            rates = [f"{rates_M[place]:.1f}" for rates_M in by_type.values()]
            rows.append([name, f"{parameters:,.0f}", with_interval(point.y, point.ends, ".1f"), *rates])
        lines += rows[:1] + rows[1:][-1:]
    across = number_axis("parameters, millions", scale="log")
    svg = scatter("Winning rates by size of the model", series, across, "winning rate, %")
    (folder / "holmes-sizes.svg").write_text(svg, "utf-8")
    head = ("series", "parameters, millions", "winning rate, % (95 % interval)", *by_type)
    return "\n\n".join(
        [
            "## Does size help?",
            paragraph(
                "Winning rates of series of models that differ in size; the sizes of T5 are those that Chung et al. "
                "(2022) give. The table has the smallest and the largest model of each series."
            ),
            "![winning rate by size, one line per series of models](holmes-sizes.svg)",
            table(head, lines),
        ]
    )


def _portions(whole: ScoreTable, shares: Mapping[float, ScoreTable], folder: Path) -> str:
    """Write the picture of rank changes by share of the training data; return its table."""
    compared = {share: rank_changes(whole, scores) for share, scores in shares.items()}
    names = ("95th percentile of rank changes", "1.96 sd / root of models")
    series = {
        name: [
            Point(_fraction(share), figures[number].value, figures[number].ends) for share, figures in compared.items()
        ]
        for number, name in enumerate(names, 1)
    }
    across = name_axis(map(_fraction, compared), "share of the training data")
    svg = scatter("Rank changes by share of the training data", series, across, "places")
    (folder / "holmes-portions.svg").write_text(svg, "utf-8")
    lines = [
        [_fraction(share), str(len(shares[share].sets)), _shown(tau), *(_shown(figure, ".1f") for figure in figures)]
        for share, (tau, *figures) in compared.items()
    ]
    return "\n\n".join(
        [
            "## How much data keeps the order?",
            paragraph(
                "Figure 13 of the paper: ranks of the models with a share of the training data against those with all "
                "of it, over the models and sets that both have. The last column has the form of the paper's figure."
            ),
            "![rank changes by share of the training data](holmes-portions.svg)",
            table(("share", "sets", "Kendall's tau (95 % interval)", *names), lines),
        ]
    )


def _shown(estimate: Estimate, spec: str = ".2f") -> str:
    return with_interval(estimate.value, estimate.ends, spec)


def _fraction(share: float) -> str:
    return f"1/{round(1 / share)}"
