"""From the answers of a run to its tables: a row for each comparison, set and figure, and a line for each size."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import pyarrow as pa

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import Tables
from poolbench_driver.stages.failure import Failure
from poolbench_driver.statistics.mcnemar import mcnemar_size
from poolbench_driver.statistics.pilots import recommended_size
from poolbench_driver.statistics.training_size import accuracy_bound, required_training_size
from poolbench_driver.suites.data_requirements import metrics
from poolbench_driver.suites.data_requirements.config import display_name
from poolbench_driver.suites.data_requirements.plan import DataPlan, DataScope
from poolbench_driver.suites.data_requirements.size_comparison import SizeComparison, compare_sizes

CI_METHOD = "t over folds in rotation, with the variance of overlapping training sets (Nadeau & Bengio)"
#: Sides of a comparison by number, 0 is the first configuration.
_FIRST = 0
SPLITS = ("num_train", "num_dev", "num_test")
SIZES = pa.schema(
    [
        ("task", pa.string()),  # set
        ("entrant", pa.string()),  # comparison
        ("size", pa.int64()),  # examples of all splits
        ("num_train", pa.float64()),  # of a fold, as means over folds and seeds
        ("num_dev", pa.float64()),
        ("num_test", pa.float64()),
        ("accuracy_first", pa.float64()),
        ("accuracy_second", pa.float64()),
        ("difference", pa.float64()),  # second minus first
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
        ("p01", pa.float64()),  # share that only the second gets right, mean over seeds
        ("p10", pa.float64()),  # share that only the first gets right
        ("power", pa.float64()),
        ("type_m", pa.float64()),
        ("type_s", pa.float64()),
        ("bound_published", pa.int64()),  # training examples that the bound asks for, by the difference of this size
        ("accuracy_bound", pa.float64()),  # by how much any accuracy can be off after these training examples
        ("same_sign", pa.float64()),  # share of repeated subsamples of half of the examples with the sign of all
        ("status", pa.string()),
        ("reason", pa.string()),
    ]
)


def assemble(plan: DataPlan, source: RowSource) -> Tables:
    """Return result rows, and the tables `sizes`, `comparisons` and `answers`."""
    scope = plan.scope
    names, apart = _side_names(scope)
    answers, rows, sizes = _comparisons_of(scope, plan.answers, source, apart)
    _, published, _ = _comparisons_of(scope, plan.published, source, apart)
    others = {
        "sizes": pa.Table.from_pylist(sizes, SIZES),
        "comparisons": pa.Table.from_pylist(_comparisons(scope, names, apart)),
    }
    tables = [
        _named(table, name, names[number])
        for (number, name), table in answers.items()
        if not isinstance(table, Failure)
    ]
    if tables:
        others["answers"] = pa.concat_tables(tables)
    return Tables(rows, others, {"published": published} if plan.published else {})


def _comparisons_of(
    scope: DataScope, keys: Mapping[tuple[int, str], str], source: RowSource, apart: Sequence[str]
) -> tuple[dict[tuple[int, str], pa.Table | Failure], list[Row], list[Row]]:
    """Return the answers of all sides with the probes of one protocol, and rows of results and sizes.

    A side that these probes do not have, such as one that a code length chooses, is not compared.
    """
    answers = {at: source.table(key) for at, key in keys.items()}
    rows, sizes = list[Row](), list[Row]()
    for number, name in product(range(1, len(apart)), scope.data):
        if (_FIRST, name) not in answers or (number, name) not in answers:
            continue
        compared = {"first": _given(scope, _FIRST), "second": _given(scope, number)}
        identity = {"task": name, "entrant": apart[number]}
        sides = [answers[_FIRST, name], answers[number, name]]
        probe = _probe(scope, number, sides)
        instances = scope.data[name].instances
        groups = dict(zip(instances["instance_id"].to_pylist(), instances["group"].to_pylist(), strict=True))
        by_size = _compared(sides, groups, scope.sizes[name], scope.config.alpha)
        timings = source.timings(keys[number, name])
        figures = measures(by_size, probe, scope.config.alpha)
        rows += [
            {**timings, **measure.to_row(), **identity, "params": {"set": name, **compared}} for measure in figures
        ]
        sizes += [{**identity, "size": size, **_columns(at_size, probe)} for size, at_size in by_size.items()]
    return answers, rows, sizes


def _side_names(scope: DataScope) -> tuple[list[str], list[str]]:
    """Return the name of each side, the first configuration first, and what sets it apart from this one."""
    model = scope.model.ref.id
    first, *others = sides = [side.columns(model) for side in scope.config.sides]
    apart = [display_name(side, model, first) for side in others]
    return [display_name(side, model) for side in sides], ["", *apart]


def _given(scope: DataScope, number: int) -> Row:
    """Return the settings in which a configuration differs from the default one. They identify its rows.

    A fine-tune is its content, wherever its folder lies.
    """
    side = scope.config.sides[number]
    revision = {} if side.adapter is None else {"adapter": scope.adapters[side.adapter].revision}
    return side.model_dump(mode="json", exclude_defaults=True) | revision


def _compared(
    sides: Sequence[pa.Table | Failure], groups: Mapping[str, str], sizes: Sequence[int], alpha: float
) -> Mapping[int, SizeComparison | CellError]:
    tables = [side for side in sides if not isinstance(side, Failure)]
    if failed := [side for side in sides if isinstance(side, Failure)]:
        return dict.fromkeys(sizes, failed[0].error)
    try:
        return compare_sizes(tables[0], tables[1], groups, alpha)
    except CellError as error:
        return dict.fromkeys(sizes, error)


class Probe(NamedTuple):
    """The larger one of two probes, which a bound is of."""

    width: int
    hidden: int | None
    num_outputs: int  # 1 for two classes, else their number


def _probe(scope: DataScope, number: int, sides: Sequence[pa.Table | Failure]) -> Probe:
    notes = [side.schema.metadata for side in sides if not isinstance(side, Failure)]
    widths, classes = ([int(note[name]) for note in notes] or [1] for name in (b"width", b"classes"))
    hidden = [scope.config.sides[side].hidden for side in (_FIRST, number)]
    return Probe(max(widths), max(filter(None, hidden), default=None), max(classes) if max(classes) > 2 else 1)


def measures(by_size: Mapping[int, SizeComparison | CellError], probe: Probe, alpha: float) -> Iterator[Measure]:
    """Yield the figures of a comparison on a set: results at the largest size, and the number of examples needed."""
    largest = by_size[max(by_size)]
    if isinstance(largest, CellError):
        yield from (Measure.failed(info.id, largest) for info in metrics.METRICS)
        return
    comparison, n = largest.comparison, largest.num_test
    details = {"accuracies": largest.accuracies, "seeds": comparison.differences}
    yield Measure.of(
        metrics.DIFFERENCE, comparison.effect, comparison.interval, ci_method=CI_METHOD, n=largest.size, details=details
    )
    yield Measure.of(metrics.POWER, largest.power, n=n)
    for metric, name in ((metrics.TYPE_M, "type_m"), (metrics.TYPE_S, "type_s")):
        error = getattr(largest.errors, name, None)
        if error is None:
            yield Measure.null(metric, Status.TOO_FEW, f"no difference of {n} test examples can be significant", n=n)
        else:
            yield Measure.of(metric, error, n=n)
    yield from _sizes_needed([at for at in by_size.values() if isinstance(at, SizeComparison)], probe, alpha)


def _sizes_needed(compared: Sequence[SizeComparison], probe: Probe, alpha: float) -> Iterator[Measure]:
    """Yield what a recommendation and the bounds ask for, from comparisons at all sizes, the smallest first."""
    largest = compared[-1]
    effect = largest.comparison.effect
    bounds = {
        metric: required_training_size(
            effect, probe.width, protocol, hidden=probe.hidden, num_outputs=probe.num_outputs
        )
        for metric, protocol in ((metrics.BOUND, "corrected"), (metrics.PUBLISHED, "published"))
    }
    for metric, bound in bounds.items():
        if bound is None:
            reason = f"a difference of {effect:g} is too small: no size resolves it"
            yield Measure.null(metric, Status.NO_EFFECT, reason)
        else:
            yield Measure.of(metric, bound, details=probe._asdict())
    needed = (metrics.RECOMMENDED, metrics.TEST_SIZE, metrics.MARGIN)
    if largest.is_collapsed:
        low, high = largest.comparison.interval or (0.0, 0.0)
        reason = f"the interval {low:.4f} to {high:.4f} holds 0, and the power is {largest.power:.2f}"
        yield from (Measure.null(metric, Status.COLLAPSED, reason) for metric in needed)
        return
    num_all = recommended_size([at.pilot for at in compared], alpha=alpha)
    num_test = mcnemar_size(list(largest.comparison.shares.values()), alpha=alpha)
    if num_all is None or num_test is None:
        reason = "no number of examples up to 10,000,000 has a power of .8"
        reason += ": the seeds disagree" if effect else ": there is no difference"
        yield from (Measure.null(metric, Status.NO_EFFECT, reason) for metric in needed)
        return
    parts = counts_of(num_all, largest.counts)
    yield Measure.of(metrics.RECOMMENDED, num_all, n=largest.size, details=parts)
    yield Measure.of(metrics.TEST_SIZE, num_test, n=largest.num_test)
    bound = bounds[metrics.BOUND]
    assert bound is not None  # there is an effect
    yield Measure.of(metrics.MARGIN, bound / max(1, parts["num_train"]))


def counts_of(num_all: int, counts: Sequence[float]) -> dict[str, int]:
    """Return training, development and test examples of a number, in the shares of a fold."""
    dev, test = (round(num_all * count / sum(counts)) for count in counts[1:])
    return dict(zip(SPLITS, (num_all - dev - test, dev, test), strict=True))


def _columns(compared: SizeComparison | CellError, probe: Probe) -> Row:
    """Return the columns of SIZES that one size has."""
    if isinstance(compared, CellError):
        return {"status": str(compared.status), "reason": str(compared)}
    comparison, errors = compared.comparison, compared.errors
    shares = list(comparison.shares.values())
    low, high = comparison.interval or (None, None)
    return {
        **dict(zip(SPLITS, compared.counts, strict=True)),
        "accuracy_first": compared.accuracies[0],
        "accuracy_second": compared.accuracies[1],
        "difference": comparison.effect,
        "ci_low": low,
        "ci_high": high,
        "p01": sum(p01 for p01, _ in shares) / len(shares),
        "p10": sum(p10 for _, p10 in shares) / len(shares),
        "power": compared.power,
        "type_m": errors and errors.type_m,
        "type_s": errors and errors.type_s,
        "bound_published": required_training_size(comparison.effect, probe.width, "published", hidden=probe.hidden),
        "accuracy_bound": accuracy_bound(compared.counts[0], probe.width, probe.hidden),
        "same_sign": compared.same_sign,
        "status": str(Status.OK),
    }


def _comparisons(scope: DataScope, names: Sequence[str], apart: Sequence[str]) -> list[Row]:
    """Return a row for each comparison: both configurations, each with its columns."""
    model = scope.model.ref.id
    first, *others = [side.columns(model) for side in scope.config.sides]
    return [
        {"entrant": apart[number], "first": names[_FIRST], "second": names[number]}
        | {f"first_{name}": value for name, value in first.items()}
        | {f"second_{name}": value for name, value in second.items()}
        for number, second in enumerate(others, 1)
    ]


def _named(table: pa.Table, name: str, configuration: str) -> pa.Table:
    """Return the answers of one set and configuration with both in columns."""
    columns = {"task": name, "configuration": configuration}
    for column, value in columns.items():
        table = table.append_column(column, pa.repeat(value, table.num_rows))
    return table.replace_schema_metadata(None)
