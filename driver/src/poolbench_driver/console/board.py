"""The board over runs and suites: one line for each entrant of each run at each layer, ordered and filtered here.

A page holds some lines at a time, so that a hundred runs cost a browser no more than one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import numpy as np

from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError
from poolbench.statistics.bootstrap import NUM_RESAMPLES, bootstrap_counts, percentile_interval
from poolbench_driver.contract.metrics import is_higher_better, metric_info
from poolbench_driver.contract.page import Answer, Cell, Column, Form, FormField, Line, Page, Part, Span, Table
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.pages.boards.ranking import LEVEL
from poolbench_driver.pages.text import interval
from poolbench_driver.records import Run, Runs
from poolbench_driver.statistics.multiple import benjamini_hochberg
from poolbench_driver.statistics.ranks import best_first
from poolbench_driver.statistics.wilcoxon import least_p

if TYPE_CHECKING:
    import pyarrow as pa

#: Lines of a page.
NUM_LINES = 100
#: Figures that differ in one of these are different quantities, and share no board.
QUANTITY = ("suite", "protocol", "budget", "dataset", "dataset_revision")
#: What a line is of.
LINE = ("run", "model", "entrant", "layer")
_FIGURE = ("metric", "value", "ci_low", "ci_high", "status", "reason")
#: Seed of the sign patterns of the test that tells lines apart, their fewest and most, and how many sums are made.
_SEED, _PATTERNS, _MOST_SUMS = 0, (499, 9_999), 4_000_000


@dataclass(frozen=True)
class Quantity:
    """Figures that can be compared, of L lines, B blocks (such as concepts) and some metrics."""

    names: tuple[str, ...]  # values of `QUANTITY`
    lines: Sequence[tuple[str, ...]]  # values of `LINE`, L of them
    blocks: Sequence[str]  # B of them
    values: Mapping[str, np.ndarray]  # by metric: mean [L, B], NaN where there is none
    ends: Mapping[str, tuple[np.ndarray, np.ndarray]]  # by metric: ends of the intervals [L, B] each
    reasons: Mapping[tuple[str, int], str]  # by metric and line: why a figure is null

    @property
    def suite(self) -> str:
        """Return the id of the suite."""
        return self.names[0]

    @cached_property
    def runs(self) -> list[str]:
        """Return the sorted ids of the runs that measured the quantity."""
        return self.distinct("run")

    @cached_property
    def words(self) -> list[str]:
        """Return the text of each line in lower case, for a search."""
        return [" ".join(line).lower() for line in self.lines]

    def distinct(self, column: str) -> list[str]:
        """Return the distinct values of a column of `LINE`. Numbers are sorted by size."""
        values = {line[LINE.index(column)] for line in self.lines} - {""}
        return sorted(values, key=lambda value: (int(value) if value.isdigit() else -1, value))

    @property
    def label(self) -> str:
        """Return a description of the quantity for readers, with the number of runs that measured it."""
        suite, protocol, budget, dataset, _ = self.names
        parts = [
            suite,
            *([dataset] if dataset != suite else []),
            budget,
            *([protocol] if protocol != "corrected" else []),
        ]
        return f"{', '.join(parts)} ({len(self.runs)} run{'s' if len(self.runs) > 1 else ''})"


class BoardView:
    """The boards over all runs. The figures of a run are read again only after a change."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, int], pa.Table | str] = {}  # by run and time of its change; why it has none
        self._quantities: list[Quantity] = []
        self._last: tuple[Quantity, Mapping[str, str], BoardSelection] | None = None

    def page(self, query: Mapping[str, str]) -> Page:
        """Return the page of the board that a query asks for.

        Args:
            query: `of` (index of the quantity among all quantities), `model`, `layer`, `block`, `words`, `sort`
                (column, with `-` before it for the highest first), `start` (first line) and `lines` (how many).

        Raises:
            ConfigError: A value of the query is invalid.
            UnknownNameError: The board has no such column for `sort`.
        """
        quantities, unread = self._read()
        if not quantities:
            answer = Answer([Span("No run has results yet.")], ["`poolbench-driver run` makes one."])
            return Page("Board", "all runs", answer, Table.of([], []), parts=_apart(unread))
        place = _number(query, "of", 0)
        if place >= len(quantities):
            raise ConfigError(f"of is {place}, and there are {len(quantities)} boards, from 0")
        return _board(quantities, place, self._selected(quantities[place], query), query, unread)

    def _selected(self, quantity: Quantity, query: Mapping[str, str]) -> BoardSelection:
        """Return the lines and blocks that a query asks for.

        The last selection is cached, because the next query often differs in the order alone.
        """
        filters = {name: query.get(name, "") for name in ("model", "layer", "block", "words")}
        last = self._last
        if last is None or last[0] is not quantity or last[1] != filters:
            self._last = last = quantity, filters, BoardSelection.of(quantity, filters)
        return last[2]

    def _read(self) -> tuple[list[Quantity], list[Line]]:
        """Return the figures of all runs, and a line for each run that cannot be read. Read only changed runs again."""
        with self._lock:
            finished, unread = self._runs.finished()
            runs = {(run.id, run.file("results.parquet").stat().st_mtime_ns): run for run in finished}
            if runs.keys() != self._tables.keys():
                new = [key for key in runs if key not in self._tables]
                with ThreadPoolExecutor() as pool:  # Arrow reads outside Python's lock
                    read = dict(zip(new, pool.map(_shown, (runs[key] for key in new)), strict=True))
                self._tables = {key: read.get(key) or self._tables[key] for key in runs}
                self._quantities = _quantities([table for table in self._tables.values() if not isinstance(table, str)])
            unread |= {run: reason for (run, _), reason in self._tables.items() if isinstance(reason, str)}
            return self._quantities, [Line.of(*run_and_reason) for run_and_reason in unread.items()]


def _shown(run: Run) -> pa.Table | str:
    """Return the figures of a run's board, with the columns for entrant and block that its suite names.

    If the run is damaged, has another version or belongs to a suite that is not installed, return the reason as text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        (suite,) = run.read_table("results", columns=["suite"])["suite"].unique().to_pylist() or ("",)
        board = SUITES.get(suite).board if suite else None
        names = {*QUANTITY, "model", "layer", *_FIGURE, "strategy", "concept"}
        names |= {board.entrant, board.block, *filter(None, [board.apart])} if board else set()
        table = run.read_table("results", columns=sorted(names))
    except PoolbenchError as error:
        return str(error)
    if board is not None:
        table = table.filter(pc.is_in(table["metric"], pa.array(board.shown)))
        if board.apart is not None:
            table = table.filter(pc.is_null(table[board.apart]))
    columns = {name: table[name] for name in (*QUANTITY, "model", "layer", *_FIGURE)}
    columns["run"] = pa.array([run.id]).take(pa.array(np.zeros(table.num_rows, np.int64)))
    columns |= {
        "entrant": table[board.entrant if board else "strategy"],
        "block": table[board.block if board else "concept"],
    }
    texts = {name: pc.fill_null(pc.cast(columns[name], pa.string()), "") for name in columns if name not in _NUMBERS}
    return pa.table(columns | texts)


_NUMBERS = ("value", "ci_low", "ci_high")


def _quantities(tables: Sequence[pa.Table]) -> list[Quantity]:
    """Return the figures of some runs by quantity. The quantity of most runs comes first."""
    import pyarrow as pa

    table = pa.concat_tables(tables) if tables else pa.table({})
    if not table.num_rows:
        return []
    codes, names = _encoded(table, QUANTITY)
    quantities = [_quantity(name, table.filter(pa.array(codes == code))) for code, name in enumerate(names)]
    return sorted(quantities, key=lambda quantity: (-len(quantity.runs), quantity.names))


def _encoded(table: pa.Table, columns: Sequence[str]) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Return which combination of some columns each row has, and the combinations."""
    import pyarrow as pa

    encoded = [table[name].combine_chunks().dictionary_encode() for name in columns]
    shape = [len(column.dictionary) for column in encoded]
    places = np.ravel_multi_index([column.indices.to_numpy() for column in encoded], shape)
    combined = pa.array(places).dictionary_encode()
    places_of = np.unravel_index(combined.dictionary.to_numpy(), shape)
    names = [
        column.dictionary.take(pa.array(places)).to_pylist() for column, places in zip(encoded, places_of, strict=True)
    ]
    return combined.indices.to_numpy(), list(zip(*names, strict=True))


def _quantity(names: tuple[str, ...], table: pa.Table) -> Quantity:
    line_codes, lines = _encoded(table, LINE)
    block_codes, blocks = _encoded(table, ("block",))
    metric_codes, metrics = _encoded(table, ("metric",))
    numbers = {name: table[name].to_numpy().astype(float) for name in _NUMBERS}
    size = len(lines) * len(blocks)
    means: dict[str, dict[str, np.ndarray]] = {}
    for code, (metric,) in enumerate(metrics):
        is_metric = metric_codes == code
        places = line_codes[is_metric].astype(np.int64) * len(blocks) + block_codes[is_metric]
        means[metric] = {name: _means(places, values[is_metric], size) for name, values in numbers.items()}
        is_mean = np.bincount(places, minlength=size) > 1  # the mean of limits is not an interval
        for end in ("ci_low", "ci_high"):
            means[metric][end][is_mean] = np.nan
    shape = (len(lines), len(blocks))
    nulls = table.append_column("line", [line_codes]).filter(np.isnan(numbers["value"]))
    reasons: dict[tuple[str, int], str] = {}
    for row in nulls.select(["metric", "line", "status", "reason"]).to_pylist():
        reason = f"{row['status']}: {row['reason']}" if row["reason"] else row["status"]
        reasons.setdefault((row["metric"], row["line"]), reason)
    return Quantity(
        names,
        lines,
        [block for (block,) in blocks],
        {
            metric: means[metric]["value"].reshape(shape)
            for metric in SUITES.get(names[0]).board.shown
            if metric in means
        },
        {
            metric: (by_name["ci_low"].reshape(shape), by_name["ci_high"].reshape(shape))
            for metric, by_name in means.items()
        },
        reasons,
    )


def _means(places: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Return the mean of the finite values at each place [size], or NaN at a place without finite values."""
    is_finite = np.isfinite(values)
    counts = np.bincount(places[is_finite], minlength=size)
    sums = np.bincount(places[is_finite], values[is_finite], minlength=size)
    return np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)


def tied_with_best(values: np.ndarray, best: int) -> np.ndarray:
    """Return a mask [L] of the lines that the best line does not beat, the best line included.

    Each line is compared with the best line over the blocks that both lines have, by a sign-flip test of the mean
    difference. All tests use the same 499 to 9,999 sign patterns: the fewer lines, the more patterns. P-values are
    corrected for the number of other lines that share a block with the best line (Benjamini and Hochberg 1995). With
    five blocks or fewer, no p-value falls below .05, so that all lines are tied.

    Args:
        values: Value of each line in each block [L, B]. NaN where a line has no value.
        best: Index of the best line.
    """
    differences = values - values[best]
    is_shared = np.isfinite(differences)
    differences = np.where(is_shared, differences, 0.0)
    num_patterns = int(np.clip(_MOST_SUMS // len(values), *_PATTERNS))
    signs = np.random.default_rng(_SEED).choice(np.array([-1, 1], np.float32), (values.shape[1], num_patterns))
    observed = np.abs(differences.sum(axis=1))
    extreme = np.zeros(len(values))
    for start in range(0, len(values), 1024):  # at most 41 MB at a time
        part = slice(start, start + 1024)
        sums = np.abs(differences[part].astype(np.float32) @ signs)
        extreme[part] = np.count_nonzero(sums >= observed[part, None].astype(np.float32) * (1 - 1e-5), axis=1)
    # As many blocks allow 2^n patterns, half of which are as extreme as their opposites.
    least = 2.0 ** (1 - is_shared.sum(axis=1))
    p_values = np.maximum((extreme + 1) / (num_patterns + 1), least)
    p_values[observed == 0] = 1.0
    p_values[~is_shared.any(axis=1)] = np.nan
    p_values[best] = np.nan
    return ~(benjamini_hochberg(np.minimum(p_values, 1.0)) <= LEVEL)


@dataclass(frozen=True)
class BoardSelection:
    """The selected S lines and B blocks of a quantity, with the values and means by which lines can be sorted."""

    quantity: Quantity
    lines: Sequence[int]  # their places in the quantity, S of them
    num_blocks: int
    values: Mapping[str, np.ndarray]  # by metric [S, B]
    means: Mapping[str, np.ndarray]  # by metric: over blocks [S]
    ends: Mapping[str, tuple[np.ndarray, np.ndarray]]  # by metric: ends of the intervals [S, B] each
    _tied: dict[str, np.ndarray | None] = field(default_factory=dict)

    @classmethod
    def of(cls, quantity: Quantity, wanted: Mapping[str, str]) -> BoardSelection:
        """Select the lines and blocks that match the filters `model`, `layer`, `block` and `words`.

        An empty filter matches everything. A line must contain all words.
        """
        words = wanted["words"].lower().split()
        lines = [
            place
            for place, line in enumerate(quantity.lines)
            if wanted["model"] in ("", line[LINE.index("model")])
            and wanted["layer"] in ("", line[LINE.index("layer")])
            and (not words or all(word in quantity.words[place] for word in words))
        ]
        blocks = [place for place, name in enumerate(quantity.blocks) if wanted["block"] in ("", name)]
        places = np.ix_(lines, blocks)
        values = {metric: table[places] for metric, table in quantity.values.items()}
        ends = {metric: (low[places], high[places]) for metric, (low, high) in quantity.ends.items()}
        return cls(quantity, lines, len(blocks), values, {m: _mean_over_blocks(v) for m, v in values.items()}, ends)

    def names(self, line: int) -> tuple[str, ...]:
        """Return the run, model, entrant and layer of a line, in the order of `LINE`."""
        return self.quantity.lines[self.lines[line]]

    @property
    def tells_apart(self) -> bool:
        """Return whether a paired test over `num_blocks` blocks can reach significance at all."""
        return least_p(self.num_blocks) <= LEVEL

    def tied(self, metric: str) -> np.ndarray | None:
        """Return a mask [S] of the lines that are tied with the best line on a metric, the best line included.

        If fewer than two lines have a value, return None.
        """
        if metric not in self._tied:
            means = self.means.get(metric, np.empty(0))
            if np.isfinite(means).sum() < 2:
                self._tied[metric] = None
            else:
                best = self.ordered(metric, is_descending=is_higher_better(metric))[0]
                self._tied[metric] = tied_with_best(self.values[metric], best) & np.isfinite(means)
        return self._tied[metric]

    def ordered(self, column: str, *, is_descending: bool) -> list[int]:
        """Return the indices of the lines, sorted by a column. A column of figures is sorted by `best_first`."""
        if column in self.means:
            means, counts = self.means[column], np.isfinite(self.values[column]).sum(axis=1)
            return best_first(-means if is_descending else means, counts)
        place = LINE.index(column if column in LINE else "entrant")
        texts = [self.names(line)[place] for line in range(len(self.lines))]
        keyed = [(int(text), "") if text.isdigit() else (-1, text) for text in texts]
        return sorted(range(len(texts)), key=lambda line: keyed[line], reverse=is_descending)

    def cell(self, metric: str, line: int) -> Cell:
        """Return the mean of a line on a metric with its interval, or the reason why the line has no mean."""
        value = float(self.means[metric][line])
        if math.isnan(value):
            reason = self.quantity.reasons.get((metric, self.lines[line]), "")
            return Cell(reason.partition(":")[0], note=reason)
        low, high = self._interval(metric, line) or (None, None)
        return Cell(f"{value:z.3f}", value, low, high, interval((low, high), ".3f"))

    @cached_property
    def _weights(self) -> np.ndarray:
        return bootstrap_counts(self.num_blocks, NUM_RESAMPLES, _SEED).astype(float)

    def _interval(self, metric: str, line: int) -> tuple[float, float] | None:
        """Return the interval of a mean, from a bootstrap over its blocks.

        If only one block has a value, return the interval of this value, or None if the value has no interval.
        """
        values = self.values[metric][line]
        is_measured = np.isfinite(values)
        if is_measured.sum() == 1:
            low, high = (float(end[line][is_measured][0]) for end in self.ends[metric])
            return None if math.isnan(low) or math.isnan(high) else (low, high)
        with np.errstate(invalid="ignore"):  # a resample without a measured block has no mean
            means_R = self._weights @ np.where(is_measured, values, 0.0) / (self._weights @ is_measured)
        return percentile_interval(means_R)


def _board(
    quantities: Sequence[Quantity], place: int, chosen: BoardSelection, query: Mapping[str, str], unread: Sequence[Line]
) -> Page:
    """Return the page of a board, with the lines in the order that a query asks for."""
    quantity, board = chosen.quantity, SUITES.get(chosen.quantity.suite).board
    start, most = _number(query, "start", 0), _number(query, "lines", NUM_LINES)
    column, is_descending = _order(quantity, query)
    order, tied = chosen.ordered(column, is_descending=is_descending), chosen.tied(column)
    is_marked = np.zeros(len(chosen.lines), bool) if tied is None or not chosen.tells_apart else tied
    counted = chosen.values.get(column, chosen.values.get(board.primary))

    def line_of(line: int) -> Line:
        run, model, entrant, layer = chosen.names(line)
        count = "" if counted is None else str(int(np.isfinite(counted[line]).sum()))
        names = [Cell(entrant), Cell(model), Cell(layer), Cell(run, opens=f"runs/{run}/"), Cell(count)]
        return Line([*names, *(chosen.cell(metric, line) for metric in chosen.means)], bool(is_marked[line]))

    heads = [
        _head(name, name, query, column, is_descending, is_text=True)
        for name in (board.entrant, "model", "layer", "run")
    ]
    heads.append(Column(f"{board.unit}s"))
    heads += [_head(metric, metric, query, column, is_descending) for metric in chosen.means]
    note = (
        f"The mean over {board.unit}s, with a 95 % interval from a bootstrap over them. The edge marks the "
        f"best line on `{column}` and those that it does not beat over the same {board.unit}s (paired sign-flip test, "
        f"Benjamini-Hochberg at .05). Lines that lack a {board.unit} stand below the others. A word in place of a "
        "number is why there is none."
    )
    last, runs = min(start + most, len(order)), len({chosen.names(line)[0] for line in order})
    sentence = (
        f"Lines {start + 1} to {last} of {len(order)}, of {runs} run{'' if runs == 1 else 's'} and "
        f"{chosen.num_blocks} {board.unit}{'' if chosen.num_blocks == 1 else 's'}."
    )
    answer = Answer(_headline(chosen, order, tied, column, board.unit), [sentence] if order else ())
    parts = _apart([*_others(quantities, quantity), *unread])
    if last < len(order):
        hidden = [(name, value) for name, value in query.items() if name != "start"] + [("start", str(last))]
        parts.insert(0, Part("more", "Further lines", [Form([], hidden, button=f"Lines {last + 1} and on")]))
    table = Table(heads, [line_of(line) for line in order[start:last]], note=note)
    form = _choices(quantities, place, query, board.unit)
    return Page("Board", quantity.label, answer, table, parts=parts, form=form)


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ConfigError(f"{name} is {text[:50]!r}; use a whole number")
    return int(text)


def _order(quantity: Quantity, query: Mapping[str, str]) -> tuple[str, bool]:
    """Return the column that lines are ordered by, and whether its highest values come first."""
    primary = next(iter(quantity.values), "")
    text = query.get("sort") or (f"-{primary}" if primary and is_higher_better(primary) else primary)
    column = text.removeprefix("-")
    columns = (*quantity.values, SUITES.get(quantity.suite).board.entrant, "model", "layer", "run")
    if column not in columns:
        raise UnknownNameError("column", column, columns)
    return column, text.startswith("-")


def _mean_over_blocks(values: np.ndarray) -> np.ndarray:
    counts = np.isfinite(values).sum(axis=1)
    return np.divide(np.nansum(values, axis=1), counts, out=np.full(len(values), np.nan), where=counts > 0)


def _head(
    name: str, label: str, query: Mapping[str, str], column: str, is_descending: bool, *, is_text: bool = False
) -> Column:
    """Return a column whose head is a link that sorts the lines by this column, or reverses their order."""
    is_ordered = column == name
    first = "" if is_text or not is_higher_better(name) else "-"
    other = ("" if is_descending else "-") if is_ordered else first
    link = "?" + urlencode({**{key: value for key, value in query.items() if key != "start"}, "sort": other + name})
    definition = "" if is_text else metric_info(name).summary
    order = ("descending" if is_descending else "ascending") if is_ordered else ""
    return Column(label, is_text, not is_text, definition=definition, link=link, order=order)  # type: ignore[arg-type]


def _choices(quantities: Sequence[Quantity], place: int, query: Mapping[str, str], unit: str) -> Form:
    quantity = quantities[place]
    models, layers = (quantity.distinct(name) for name in ("model", "layer"))

    def choice(name: str, label: str, values: Sequence[str]) -> FormField:
        return FormField(name, label, query.get(name, ""), [("", "all"), *((value, value) for value in values)])

    fields = [
        FormField("of", "figures of", str(place), [(str(number), one.label) for number, one in enumerate(quantities)]),
        *([choice("model", "model", models)] if len(models) > 1 else []),
        *([choice("layer", "layer", layers)] if len(layers) > 1 else []),
        *([choice("block", unit, sorted(quantity.blocks))] if len(quantity.blocks) > 1 else []),
        FormField("words", "lines with the words", query.get("words", "")),
    ]
    return Form(fields, [("sort", query["sort"])] if query.get("sort") else [])


def _headline(
    chosen: BoardSelection, order: Sequence[int], tied: np.ndarray | None, column: str, unit: str
) -> list[Span]:
    if not order:
        return [Span("No line is left; choose less.")]
    if tied is None:
        return [Span(f"{len(order)} line{'' if len(order) == 1 else 's'}.")]
    best, others = next(line for line in order if tied[line]), int(tied.sum()) - 1
    _, model, entrant, layer = chosen.names(best)
    where = f" ({model}{f', layer {layer}' if layer else ''}) comes first on {column}"
    if not chosen.tells_apart:
        rest = f". {chosen.num_blocks} {unit}{'s' if chosen.num_blocks > 1 else ''} cannot tell lines apart."
    elif others:
        rest = f"; the data do not tell it apart from {others} other{'s' if others > 1 else ''}."
    else:
        rest = ", and beats every other line."
    return [Span(entrant, named=True), Span(where + rest)]


def _others(quantities: Sequence[Quantity], shown: Quantity) -> Iterator[Line]:
    """Yield a line for each quantity that is not on this board, with the settings in which the quantity differs."""
    for number, quantity in enumerate(quantities):
        if quantity is not shown:
            differing = [
                f"{name} {theirs or 'none'} instead of {ours or 'none'}"
                for name, theirs, ours in zip(QUANTITY, quantity.names, shown.names, strict=True)
                if theirs != ours
            ]
            yield Line.of(Cell(quantity.label, opens=f"board?of={number}"), "; ".join(differing))


def _apart(lines: Sequence[Line]) -> list[Part]:
    """Return a part that lists the figures left out of a board, with the reasons. Return no part without lines."""
    if not lines:
        return []
    note = "Figures that differ in these are different quantities and are never ranked together."
    table = Table.of([Column("figures", is_text=True), Column("why they stand apart", is_text=True)], lines)
    return [Part("apart", "What stands apart", [table], note=note)]
