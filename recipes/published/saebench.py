"""How scores of recorded autoencoders agree with those of SAEBench: pairs in the same order, and correlations."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from poolbench.errors import InputError
from poolbench.statistics.bootstrap import bootstrap_counts, percentile_interval
from poolbench_driver.contract.source import TableLine, read_csv
from poolbench_driver.pages.text import interval, paragraph, table, with_interval
from poolbench_driver.statistics.correlation import kendall, pearson, spearman
from poolbench_driver.suites.ce_bench.recordings import L0_WEIGHT, architecture_of, width_of

#: Columns of the table, and how the repository of CE-Bench names them.
COLUMNS = {
    "contrastive": ("contrastive", "contrastive_score"),
    "independent": ("independent", "independent_score"),
    "l0": ("l0", "sparsity"),
    "ground_truth": ("ground_truth",),
}
NUM_RESAMPLES = 1000


def agreement(file: Path) -> str:
    """Return the share of pairs that each score orders as SAEBench does, as text.

    Raises:
        InputError: The table cannot be used; the message names file and line.
    """
    head, lines = read_csv(file)
    if len(lines) < 2:
        raise InputError(f"{file}: {len(lines)} autoencoder; at least two are needed for a pair")
    columns = {name: _column(file, head, lines, names) for name, names in COLUMNS.items()}
    both = columns["contrastive"] + columns["independent"]
    scores = {
        f"contrastive + independent - {L0_WEIGHT:g} x L0": both - L0_WEIGHT * columns["l0"],
        "contrastive + independent": both,
        "-L0": -columns["l0"],
    }
    widths = [next(filter(None, map(width_of, _named(line))), None) for line in lines]
    sizes = [width for width in widths if width is not None]
    if len(sizes) == len(lines) and len(set(sizes)) > 1:
        scores["log2 of the width"] = np.log2(sizes)
    intro = paragraph(
        f"Scores recorded by others in {file.name}: {len(lines)} autoencoders, {math.comb(len(lines), 2)} pairs. A "
        "pair counts where the score orders it as SAEBench does (column ground_truth); intervals of 95 % come from a "
        "bootstrap over autoencoders, and so do those of the correlations. The first score is the paper's "
        "sparsity-aware one."
    )
    if len(sizes) < len(lines):
        intro += f"\n\nlog2 of the width is not compared: the width is missing in {len(lines) - len(sizes)} lines."
    truth = columns["ground_truth"]
    cells = [[name, *_shares(values, truth), *_correlations(values, truth)] for name, values in scores.items()]
    head = ["score", "pairs ordered as SAEBench does, %", "95 % interval", "tied pairs, %", "Spearman", "Pearson"]
    parts = [
        "## Agreement with SAEBench",
        intro,
        table(head, cells),
        _architectures(lines, scores, truth),
    ]
    return "\n\n".join(filter(None, parts))


def _column(file: Path, head: list[str], lines: list[TableLine], names: tuple[str, ...]) -> np.ndarray:
    """Return the numbers of a column under one of its names."""
    name = next((column for column in names if column in head), None)
    if name is None:
        raise InputError(f"{file}, line 1: no column {' or '.join(names)}")
    values = np.array([line.number(name) for line in lines])
    if np.isnan(values).any():
        raise InputError(f"{lines[int(np.isnan(values).argmax())].where}: {name} is missing; every score needs it")
    return values


def _named(line: TableLine) -> list[str]:
    """Return the cells of a line that may name width or architecture, in lower case: its column `width` comes first."""
    texts = [cell.lower() for cell in line.cells.values() if "width" in cell.lower() or architecture_of(cell.lower())]
    return [line.cells.get("width", "").lower(), *texts]


def _architectures(lines: Sequence[TableLine], scores: Mapping[str, np.ndarray], truth: np.ndarray) -> str:
    """Return how the means of architectures are ordered by each score and by SAEBench, empty for fewer than three."""
    names = np.array([next(filter(None, map(architecture_of, _named(line))), "") for line in lines])
    kinds = sorted(set(names) - {""})
    if len(kinds) < 3:
        return ""
    of_truth = np.array([truth[names == name].mean() for name in kinds])
    bullets = []
    for score, values in scores.items():
        means = np.array([values[names == name].mean() for name in kinds])
        bullets.append(f"- {score}: Kendall's tau {kendall(means, of_truth):.2f}; {_order(kinds, means)}")
    bullets.append(f"- SAEBench: {_order(kinds, of_truth)}")
    return f"Order of the {len(kinds)} architectures by their means, beside that of SAEBench:\n\n" + "\n".join(bullets)


def _order(names: Sequence[str], means: np.ndarray) -> str:
    return ", ".join(f"{names[place]} {means[place]:.4g}" for place in np.argsort(-means, kind="stable"))


def _shares(scores: np.ndarray, truth: np.ndarray) -> list[str]:
    """Return the share of pairs in the order of the truth, its interval, and the share of ties, in percent."""
    first, second = np.triu_indices(len(scores), 1)
    order = np.sign(scores[first] - scores[second])
    right = order == np.sign(truth[first] - truth[second])
    counts = bootstrap_counts(len(scores), NUM_RESAMPLES, 0)
    weights = counts[:, first] * counts[:, second]
    with np.errstate(invalid="ignore"):
        ends = percentile_interval(100 * (weights @ right) / weights.sum(axis=1))
    return [f"{100 * right.mean():.2f}", interval(ends or (None, None), ".2f"), f"{100 * (order == 0).mean():.2f}"]


def _correlations(scores: np.ndarray, truth: np.ndarray) -> list[str]:
    """Return the correlations of Spearman and Pearson with the truth, with intervals; empty where there is none."""
    count = len(scores)
    counts = bootstrap_counts(count, NUM_RESAMPLES, 0)
    places = np.repeat(np.tile(np.arange(count), NUM_RESAMPLES), counts.ravel()).reshape(NUM_RESAMPLES, count)
    cells = []
    for correlation in (spearman, pearson):
        value = float(correlation(scores, truth))
        ends = percentile_interval(correlation(scores[places], truth[places]))
        cells.append("" if np.isnan(value) else with_interval(value, ends, ".2f"))
    return cells
