"""Lists of registered, stored and imported objects, such as strategies, scorers and runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError
from poolbench_driver.api.notebook import Rows

if TYPE_CHECKING:
    from poolbench_driver.records import Run, Runs

Entries = list[dict[str, Any]]


def _row(entry: object, *columns: str) -> dict[str, Any]:
    """Return attributes of an object by column. A space in a column stands for `_`, and a list becomes one text."""
    values = {name: getattr(entry, name.replace(" ", "_")) for name in columns}
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple | list) else value for name, value in values.items()
    }


def _strategies(_: Path) -> Entries:
    from poolbench.pooling.registry import STRATEGIES

    columns = ("id", "version", "family", "board", "needs", "on request", "summary")
    return [_row(strategy, *columns) for strategy in STRATEGIES.all()]


def _concepts(_: Path) -> Entries:
    from poolbench.concepts import CONCEPTS
    from poolbench.library.concepts import Library
    from poolbench_driver.cluster.session import open_artifacts

    try:
        user_concepts = Library(open_artifacts().store).all()
    except ConfigError:  # the built-in ones need no cluster
        print("no cluster is running here, so concepts of your own are not shown", file=sys.stderr)
        user_concepts = []
    return [
        {
            **_row(concept, "id", "family", "matched pairs", "sensitive"),
            "distant neighbour": concept.neighbours.linguistically_distant or "",
            "close neighbour": concept.neighbours.linguistically_close or "",
        }
        for concept in [*CONCEPTS.all(), *user_concepts]
    ]


def _models(_: Path) -> Entries:
    from poolbench.config import MODEL_PRESETS

    return [_row(preset, "id", "source", "dtype", "summary") for preset in MODEL_PRESETS.values()]


def _suites(_: Path) -> Entries:
    from poolbench_driver.contract.registry import SUITES

    columns = ("id", "summary", "dataset", "revision", "licence", "reference", "citation")
    return [_row(suite, *columns) for suite in SUITES.all()]


def _probing_sets(_: Path) -> Entries:
    """Return the sets that can be probed here, then the public sets whose data are absent."""
    from poolbench_corpora.probing import PROBING_SETS

    first = ("id", "type", "phenomenon", "input")
    here = [_row(probing_set, *first, "fidelity", "source", "licence") for probing_set in PROBING_SETS.all()]
    absent = [
        {**_row(probing_set, *first), "fidelity": "absent", "source": probing_set.source, "licence": ""}
        for probing_set in PROBING_SETS.absent()
    ]
    return here + absent


def _stories(_: Path) -> Entries:
    """Return all registered sets of stories, with a column that says whether the data are present."""
    from poolbench_corpora.stories import StoryCatalog

    return [
        {
            "name": s.name, "here": s.is_present, "subjects": s.num_subjects, "pairs": s.num_rows,
            "licence": s.licence or "", "source": s.source,
        }
        for s in StoryCatalog(Path("stories")).all()
    ]  # fmt: skip


def _saes(_: Path) -> Entries:
    """Return the shipped and the imported autoencoders. Print a note for each one that cannot be read."""
    from poolbench.errors import InputError
    from poolbench_driver.imports.saes import known_places, read_all

    rows = []
    for name, sae, _files in read_all(known_places()):
        if isinstance(sae, InputError):
            print(f"note: {sae}", file=sys.stderr)
        else:
            size = {"d": sae.num_features, "layer": sae.layer, "d_in": sae.width}
            rows.append({"name": name, "architecture": sae.architecture, **size})
    return rows


def _scorers(_: Path) -> Entries:
    from poolbench.library.scorers import ScorerRecords, defaults
    from poolbench_driver.cluster.session import open_artifacts

    scorers = ScorerRecords(open_artifacts().store).scorers()
    default = defaults(scorers)
    return [
        {
            **_row(scorer, "id", "concept", "base"),
            "default": scorer in default,
            "made_at": datetime.fromtimestamp(scorer.made_s, UTC).isoformat(timespec="seconds"),
        }
        for scorer in scorers
    ]


def _directions(_: Path) -> Entries:
    from poolbench.library.directions import NamedDirections
    from poolbench_driver.cluster.session import open_artifacts

    directions: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in NamedDirections(open_artifacts()).all():
        row = _row(one, "model", "concept", "strategy", "layer")
        figures = {
            name: None if value is None else round(value, 3) for name, value in (("d1", one.d1), ("gain", one.gain))
        }
        # The latest run comes first, and a name means its direction.
        directions.setdefault(
            tuple(row.values()), row | figures | {"fluent up to": one.fluent_strength, "run": one.run}
        )
    return list(directions.values())


def _activations(_: Path) -> Entries:
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.imports.states import list_imports

    columns = ("name", "revision", "layers", "width", "concepts")
    return [
        {**_row(activations, *columns), "imported_at": activations.created_at}
        for activations in list_imports(open_artifacts())
    ]


def _runs(output: Path) -> Entries:
    """Return the runs of the folder and of the object store. Without a store, return the runs of the folder."""
    from poolbench_driver.records import Runs, open_runs

    try:
        runs = open_runs(output)
        entries = runs.all()
    except PoolbenchError as error:
        print(f"note: only the runs below {output} are listed: {error}", file=sys.stderr)
        runs = Runs(output)
        entries = runs.all()
    return [{"id": run.id, **_measured(run, runs), **run.read_state(), "local": run.is_here} for run in entries]


def _measured(run: Run, runs: Runs) -> dict[str, str]:
    """Return the model and the first concepts of a run, or {} if its configuration cannot be read."""
    try:
        config = run.config if run.is_here else runs.records.config(run.id) if runs.records else None
    except PoolbenchError:
        config = None
    if config is None:
        return {}
    from poolbench_driver.pages.text import listed

    return {"model": config.model, "concepts": listed(config.concept_ids)}


KINDS: dict[str, Callable[[Path], Entries]] = {
    "strategies": _strategies,
    "concepts": _concepts,
    "models": _models,
    "scorers": _scorers,
    "directions": _directions,
    "activations": _activations,
    "runs": _runs,
    "suites": _suites,
    "probing-sets": _probing_sets,
    "stories": _stories,
    "saes": _saes,
}


def listed_entries(kind: str, output: Path) -> Entries:
    """Return the objects of a kind, one dictionary per object. Raise UnknownNameError for an unknown kind."""
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    return KINDS[kind](output)


def ls(kind: str, output: Path | str = "runs") -> Rows:
    """List the objects of a kind, as the command `ls` does.

    Args:
        kind: strategies, concepts, models, scorers, directions, activations, runs, suites, probing-sets, stories or
            saes.
        output: Folder of the runs, which only the kind runs reads.

    Returns:
        One row per object.

    Raises:
        UnknownNameError: The kind is unknown.
        ConfigError: The kind is stored in the object store of a cluster, and no cluster is configured.
    """
    import pyarrow as pa

    entries = listed_entries(kind, Path(output))
    columns = dict.fromkeys(name for entry in entries for name in entry)
    return Rows(pa.Table.from_pylist([dict.fromkeys(columns) | entry for entry in entries]))
