"""Entrants that are ranked among recorded models: those of a run, or of the reference tool's own output."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from poolbench.errors import ConfigError, InputError, shown
from poolbench_driver.contract.source import MISSING, TableLine, read_csv
from poolbench_driver.contract.suite import FinishedRun
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.metrics import SCORE
from poolbench_driver.suites.holmes.recordings import ScoreTable, described, read_scores

#: Columns of `results_holmes.csv` and `results_flash-holmes.csv`, as the reference's `evaluate.py` writes them.
_SET, _MODEL, _ENCODING, _CONTROL = "probing_dataset", "model_name", "encoding", "control_task_type"
_PORTION, _SEED, _HIDDEN, _SCORE = "sample_size", "seed", "num_hidden_layers", "score"
REFERENCE_COLUMNS = (_SET, _MODEL, _ENCODING, _CONTROL, _PORTION, _SEED, _HIDDEN, _SCORE)


@dataclass(frozen=True)
class JoinedEntrant:
    """The scores of one entrant by public set."""

    name: str
    scores: Mapping[str, float]
    portion: float  # share of the training data behind them
    rebuilt: frozenset[str] = frozenset()  # sets whose texts are not those of the public suite


@dataclass(frozen=True)
class JoinedTable:
    """Recorded models and joined entrants, on the sets that the table and all joined entrants have."""

    scores: ScoreTable
    names: Sequence[str]  # of the joined entrants
    note: str  # what was joined, on how many sets


def entrants_of_run(run: FinishedRun) -> list[JoinedEntrant]:
    """Return the entrants of a run, by the reference's definition of the score.

    Raises:
        ConfigError: The run is of another suite or has no published figures, or none of its sets stands for a public
            one.
    """
    config = run.config
    if not isinstance(config, HolmesConfig):
        raise ConfigError(f"run {run.id} is of the suite {config.suite}: --join takes runs of holmes")
    if "published" not in run.tables:
        raise ConfigError(f"run {run.id} has no published figures: run it with --protocol published to join it")
    public = {
        row["set"]: row["stands_for"] or row["set"]
        for row in run.tables["sets"].to_pylist()
        if row["fidelity"] == "same" or (row["fidelity"] == "rebuilt" and row["stands_for"])
    }
    if not public:
        raise ConfigError(f"run {run.id}: none of its sets is, or stands for, a set of the public suite")
    fidelity = {row["set"]: row["fidelity"] for row in run.tables["sets"].to_pylist()}
    rebuilt = frozenset(public_name for name, public_name in public.items() if fidelity[name] == "rebuilt")
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in run.tables["published"].to_pylist():
        if row["metric"] == SCORE and row["value"] is not None and row["task"] in public:
            scores[row["entrant"]][public[row["task"]]].append(row["value"])
    if not scores:
        raise ConfigError(f"run {run.id} has no score on any of its sets: see the nulls on its page")
    return [
        JoinedEntrant(name, {of: fmean(values) for of, values in by_set.items()}, config.flash or 1.0, rebuilt)
        for name, by_set in scores.items()
    ]


def entrants_of_output(file: Path) -> list[JoinedEntrant]:
    """Read the entrants from the output of the reference tool: each model, encoding and number of hidden layers.

    Rows of control tasks are left out, and seeds are averaged.

    Raises:
        InputError: The file cannot be used; the message names file and line.
    """
    _, lines = read_csv(file, REFERENCE_COLUMNS)
    lines = [line for line in lines if _is_plain(line)]
    if not lines:
        raise InputError(f"{file}: every row is of a control task; there is nothing to rank")
    encodings = {line.cells[_ENCODING] for line in lines}
    places: dict[tuple[str, ...], TableLine] = {}
    values: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        place = tuple(line.cells[name] for name in REFERENCE_COLUMNS if name != _SCORE)
        if place in places:
            raise InputError(f"{line.where}: {shown(line.cells[_SET])} is there already: {places[place].where}")
        places[place] = line
        score = line.number(_SCORE)
        if np.isfinite(score):
            name = _name(line, with_encoding=len(encodings) > 1)
            values[name, _portion(line)][line.cells[_SET]].append(score)
    return [
        JoinedEntrant(name, {of: fmean(scores) for of, scores in by_set.items()}, portion)
        for (name, portion), by_set in values.items()
    ]


def read_table(file: Path, portion: float | None = None) -> ScoreTable:
    """Read the scores of recorded models from the table of a leaderboard, or from the output of the reference tool.

    Args:
        portion: Share of the training data to read. By default, a leaderboard is read as by `read_scores`, and the
            output of the tool must have a single share.

    Raises:
        InputError: The file cannot be read, or has fewer than two models.
        ConfigError: The output of the tool has several shares, and `portion` is None.
    """
    head, _ = read_csv(file)
    if not set(REFERENCE_COLUMNS) <= set(head):
        return read_scores(file, portion)
    entrants = entrants_of_output(file)
    of_portion = [entrant for entrant in entrants if entrant.portion == (portion or one_portion(entrants))]
    if len(of_portion) < 2:
        raise InputError(f"{file}: models: {len(of_portion)}; at least two are needed: --join it to a recorded table")
    sets = list(dict.fromkeys(name for entrant in of_portion for name in entrant.scores))
    scores = np.array([[entrant.scores.get(name, np.nan) for name in sets] for entrant in of_portion])
    names = [entrant.name for entrant in of_portion]
    return ScoreTable.noted(names, {name: described(name) for name in sets}, scores, of_portion[0].portion)


def _is_plain(line: TableLine) -> bool:
    return line.cells[_CONTROL].lower().rpartition(".")[2] in MISSING


def _name(line: TableLine, *, with_encoding: bool) -> str:
    hidden = line.cells[_HIDDEN]
    name = line.cells[_MODEL] + (f" {line.cells[_ENCODING]}" if with_encoding else "")
    return name if hidden in ("", "0") else f"{name} MLP ({hidden} hidden)"


def _portion(line: TableLine) -> float:
    """Return the share of the training data. The reference writes 0 for all of it."""
    share = line.number(_PORTION)
    if not 0 <= share <= 1:
        raise InputError(f"{line.where}: the sample size {shown(line.cells[_PORTION])} is not a share from 0 to 1")
    return share or 1.0


def one_portion(entrants: Sequence[JoinedEntrant]) -> float:
    """Return the share of the training data behind all entrants. Raise ConfigError if the shares differ."""
    portions = {entrant.portion for entrant in entrants}
    if len(portions) > 1:
        shares = ", ".join(f"{portion:.4g}" for portion in sorted(portions))
        raise ConfigError(f"what is joined has scores of several shares of the training data ({shares}): join one")
    return portions.pop()


def join(table: ScoreTable, entrants: Sequence[JoinedEntrant]) -> JoinedTable:
    """Join the scores of entrants to the recorded scores, on the sets that the table and all entrants have.

    Raises:
        ConfigError: There is no common set, or two entrants have one name.
    """
    columns = [n for n, name in enumerate(table.sets) if all(name in entrant.scores for entrant in entrants)]
    if not columns:
        joined_sets = sorted({name for entrant in entrants for name in entrant.scores})
        raise ConfigError(
            f"no set in common: the table has {table.sets[0]} and {len(table.sets) - 1} others, what is joined has "
            f"{', '.join(joined_sets[:5])}{' ...' if len(joined_sets) > 5 else ''}"
        )
    names = [entrant.name for entrant in entrants]
    if double := [name for name in names if name in table.models or names.count(name) > 1]:
        raise ConfigError(f"two entrants would have the name {double[0]}: rename one, or join one of them")
    sets = [table.sets[n] for n in columns]
    own_scores = np.array([[entrant.scores[name] for name in sets] for entrant in entrants])
    rebuilt = len({name for entrant in entrants for name in entrant.rebuilt if name in sets})
    in_common = f"the {len(sets)} set{'s' if len(sets) > 1 else ''} in common of {len(table.sets)}"
    note = f"joined: {', '.join(names)}, on {in_common}" + (
        f"; {rebuilt} of them rebuilt, with other texts than those recorded" if rebuilt else ""
    )
    scores = replace(
        table,
        models=[*table.models, *names],
        sets=sets,
        types=table.types[columns],
        phenomena=table.phenomena[columns],
        scores=np.concatenate([table.scores[:, columns], own_scores]),
    )
    return JoinedTable(scores, names, note)
