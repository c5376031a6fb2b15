"""Published claims about sparse autoencoders that a tree of recorded results can check."""

import math
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations

import numpy as np

from poolbench.statistics.bootstrap import bootstrap_counts, percentile_interval
from poolbench_driver.pages.text import items, paragraph, table, with_interval
from poolbench_driver.statistics.correlation import kendall, pearson, spearman
from poolbench_driver.suites.ce_bench.recordings import FIGURES, Entry, strata

NUM_RESAMPLES = 1000
#: Fewest autoencoders of an architecture whose mean is compared.
FEWEST = 3


def claims_markdown(entries: Sequence[Entry]) -> str:
    """Return which claims hold under which definition as text."""
    intro = paragraph(
        "Exponents are slopes of log score on log width (or L0), among autoencoders that share stories, model, hook "
        "and architecture (for L0 also width). Intervals of 95 % come from a bootstrap over autoencoders. A maximum of "
        "z-scores is at most (d - 1) / sqrt(d), so dead features alone can give a sparse score the exponent 0.5."
    )
    head = ["claim", "definition", *(f"exponent of {name}" for name in FIGURES)]
    parts = ["## Claims", intro, table(head, _exponents(entries))]
    return "\n\n".join([*parts, items([*_orders(entries), *_layers(entries), *_sites(entries), _qwen(entries)])])


def _exponents(entries: Sequence[Entry]) -> Iterator[list[str]]:
    """Yield the lines on width and on sparsity."""
    wide = [(float(entry.d), (*entry.comparable, entry.architecture), entry) for entry in entries if entry.d]
    for definition in ("published", "sqrt_d"):
        cells = [_exponent(wide, definition, figure) for figure in FIGURES]
        yield ["wider autoencoders score higher (above 0)", definition, *cells]
    sparse = [(entry.l0, (*entry.comparable, entry.architecture, entry.d), entry) for entry in entries if entry.l0]
    cells = [_exponent(sparse, "published", figure) for figure in FIGURES]
    yield ["sparser autoencoders score higher (below 0)", "published", *cells]


def _exponent(places: Sequence[tuple[float, Hashable, Entry]], definition: str, figure: str) -> str:
    """Return the exponent of a figure in a property, within strata where the property varies, with its interval.

    Args:
        places: Property, stratum and autoencoder.
        definition, figure: What is read of the autoencoder.
    """
    strata: dict[Hashable, list[tuple[float, float]]] = {}
    for place, stratum, entry in places:
        value = entry.value(definition, figure)
        if value is not None and value > 0:
            strata.setdefault(stratum, []).append((math.log(place), math.log(value)))
    groups = [np.array(points) for points in strata.values() if len({place for place, _ in points}) > 1]
    if not groups:
        return "no comparison"
    drawn = np.zeros((2, 1 + NUM_RESAMPLES))
    for seed, points in enumerate(groups):
        counts = bootstrap_counts(len(points), NUM_RESAMPLES, seed)
        drawn += _moments(points, np.concatenate([np.ones((1, len(points))), counts]))
    with np.errstate(invalid="ignore", divide="ignore"):
        slope, *samples = drawn[0] / drawn[1]
    ends = percentile_interval(np.array(samples))
    return f"{with_interval(slope, ends, '+.2f')}, n = {sum(map(len, groups))}"


def _moments(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return covariance and variance about the weighted means, times the weights [2, R]."""
    total = weights.sum(axis=1)
    x, y = points.T
    mean_x, mean_y = weights @ x / total, weights @ y / total
    return np.array([weights @ (x * y) - total * mean_x * mean_y, weights @ (x * x) - total * mean_x**2])


def _orders(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the order of architectures on each set of stories, and whether it is the same on two of them."""
    by_place: dict[tuple[str, str, int], dict[str, dict[str, list[float]]]] = {}
    for entry in entries:
        if entry.d and entry.architecture:
            stories = f"{entry.stories or 'unnamed stories'}, {entry.rows} rows"
            by_architecture = by_place.setdefault((entry.model, entry.hook, entry.d), {}).setdefault(stories, {})
            by_architecture.setdefault(entry.architecture, []).append(entry.figures["interpretability"]["max"])
    compared = False
    for (model, hook, d), by_stories in sorted(by_place.items()):
        orders = {}
        for stories, by_name in sorted(by_stories.items()):
            frequent_architectures = {name: values for name, values in by_name.items() if len(values) >= FEWEST}
            if len(frequent_architectures) > 1:
                compared = True
                orders[stories] = {name: float(np.mean(values)) for name, values in frequent_architectures.items()}
                yield f"Order of architectures, {model} {hook}, d = {d}, {stories}: {_order(frequent_architectures)}"
        for (one, first), (other, second) in combinations(orders.items(), 2):
            names = sorted(first.keys() & second.keys())
            if len(names) > 2:
                tau = kendall(np.array([first[name] for name in names]), np.array([second[name] for name in names]))
                yield f"The orders on {one} and {other}, d = {d}: Kendall's tau {tau:.2f}, {len(names)} architectures"
    if not compared:
        yield "Order of architectures: not checkable, no two of them have enough autoencoders of one width"


def _order(values: dict[str, list[float]]) -> str:
    """Return architectures by mean interpretability, and by how much the first leads the second."""
    ranked = sorted(values, key=lambda name: -float(np.mean(values[name])))
    first, second = (np.array(values[name]) for name in ranked[:2])
    drawn = [
        bootstrap_counts(len(part), NUM_RESAMPLES, seed) @ part / len(part) for seed, part in enumerate((first, second))
    ]
    ends = percentile_interval(drawn[0] - drawn[1])
    ranking = ", ".join(f"{name} {np.mean(values[name]):.1f}" for name in ranked)
    return f"{ranking}. The first leads the second by {with_interval(first.mean() - second.mean(), ends, '+.1f')}"


def _layers(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield how the score goes with the layer, among autoencoders that agree in all else."""
    for (stories, rows, model, site, d), by_layer in strata(entries, "layer").items():
        points = [(layer, entry.figures["interpretability"]["max"]) for layer in by_layer for entry in by_layer[layer]]
        layers, scores = np.array(points).T
        if not np.isnan(rank := float(spearman(layers, scores))):
            yield (
                f"Layer and interpretability, {model} {site}, d = {d}, {stories or 'unnamed stories'}, {rows} rows: "
                f"Spearman {rank:.2f}, Pearson {float(pearson(layers, scores)):.2f}, {len(by_layer)} layers, "
                f"{len(points)} autoencoders"
            )


def _sites(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the order of the sites of a layer, among autoencoders that agree in all else."""
    for (stories, rows, model, layer, d), by_site in strata(entries, "site").items():
        means = {
            site: np.mean([entry.figures["interpretability"]["max"] for entry in by_site[site]]) for site in by_site
        }
        order = ", ".join(f"{site} {means[site]:.1f}" for site in sorted(means, key=lambda site: -means[site]))
        yield (f"Order of sites, {model} layer {layer}, d = {d}, {stories or 'unnamed stories'}, {rows} rows: {order}")


def _qwen(entries: Sequence[Entry]) -> str:
    count = sum("qwen" in f"{entry.model} {entry.path}".lower() for entry in entries)
    return (
        f"Qwen: {count} autoencoders are recorded" if count else "Qwen: not checkable, no autoencoder of it is recorded"
    )
