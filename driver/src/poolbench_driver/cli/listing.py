"""ls: what is registered, stored and imported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError
from poolbench_driver.cli.tables import AsJson, print_data, print_table

if TYPE_CHECKING:
    from poolbench_driver.records import Run, RunRecords

Rows = list[dict[str, Any]]


def _row(entry: object, *columns: str) -> dict[str, Any]:
    """Return attributes of a thing by column, whose name may have spaces; names in a tuple become one text."""
    values = {name: getattr(entry, name.replace(" ", "_")) for name in columns}
    return {
        name: ",".join(map(str, value)) if isinstance(value, tuple | list) else value for name, value in values.items()
    }


def _strategies(_: Path) -> Rows:
    from poolbench.pooling.registry import STRATEGIES

    columns = ("id", "version", "family", "board", "needs", "on request", "summary")
    return [_row(strategy, *columns) for strategy in STRATEGIES.all()]


def _concepts(_: Path) -> Rows:
    from poolbench.concepts import CONCEPTS
    from poolbench.library import Library
    from poolbench_driver.cluster.session import open_artifacts

    try:
        user_concepts = Library(open_artifacts().store).all()
    except ConfigError:  # the built-in ones need no cluster
        typer.echo("no cluster is running here, so concepts of your own are not shown", err=True)
        user_concepts = []
    return [
        {
            **_row(concept, "id", "family", "matched pairs", "sensitive"),
            "distant neighbour": concept.neighbours.linguistically_distant or "",
            "close neighbour": concept.neighbours.linguistically_close or "",
        }
        for concept in [*CONCEPTS.all(), *user_concepts]
    ]


def _models(_: Path) -> Rows:
    from poolbench.config import MODEL_PRESETS

    return [_row(preset, "id", "source", "dtype", "summary") for preset in MODEL_PRESETS.values()]


def _suites(_: Path) -> Rows:
    from poolbench_driver.contract.registry import SUITES

    columns = ("id", "summary", "dataset", "revision", "licence", "reference", "citation")
    return [_row(suite, *columns) for suite in SUITES.all()]


def _probing_sets(_: Path) -> Rows:
    """Return the sets that can be probed here, then ours and those of the public suite that cannot, with sources."""
    from poolbench_corpora.probing import PROBING_SETS

    first, catalogue = ("id", "type", "phenomenon", "input"), PROBING_SETS.all()
    rows = {probing_set.id: _row(probing_set, *first, "fidelity", "source", "licence") for probing_set in catalogue}
    here = [rows[probing_set.id] for probing_set in catalogue if PROBING_SETS.is_here(probing_set)]
    ours = [
        rows[probing_set.id] | {"fidelity": "absent"}
        for probing_set in catalogue
        if not PROBING_SETS.is_here(probing_set)
    ]
    absent = [
        {**_row(probing_set, *first), "fidelity": "absent", "source": probing_set.source, "licence": ""}
        for probing_set in PROBING_SETS.absent()
    ]
    return here + ours + absent


def _stories(_: Path) -> Rows:
    """Return the sets of stories that are known, whether or not they are here."""
    from poolbench_corpora.stories import StoryCatalog

    return [
        {
            "name": s.name, "here": s.is_present, "subjects": s.num_subjects, "pairs": s.num_rows,
            "licence": s.licence or "", "source": s.source,
        }
        for s in StoryCatalog(Path("stories")).all()
    ]  # fmt: skip


def _saes(_: Path) -> Rows:
    """Return the autoencoders that are shipped, and those that were imported; those that cannot be read are noted."""
    from poolbench.errors import InputError
    from poolbench_driver.imports.saes import known_places, read_all

    rows = []
    for name, sae, _files in read_all(known_places()):
        if isinstance(sae, InputError):
            typer.echo(f"note: {sae}", err=True)
        else:
            size = {"d": sae.num_features, "layer": sae.layer, "d_in": sae.width}
            rows.append({"name": name, "architecture": sae.architecture, **size})
    return rows


def _scorers(_: Path) -> Rows:
    from poolbench.storage.scorers import defaults, named_scorers
    from poolbench_driver.cluster.session import open_artifacts

    scorers = named_scorers(open_artifacts().store)
    default = defaults(scorers)
    return [
        {
            **_row(scorer, "id", "concept", "base"),
            "default": scorer in default,
            "made_at": datetime.fromtimestamp(scorer.made_s, UTC).isoformat(timespec="seconds"),
        }
        for scorer in scorers
    ]


def _directions(_: Path) -> Rows:
    from poolbench.storage.directions import NamedDirections
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


def _activations(_: Path) -> Rows:
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.imports.imported_states import list_imports

    columns = ("name", "revision", "layers", "width", "concepts")
    return [
        {**_row(activations, *columns), "imported_at": activations.created_at}
        for activations in list_imports(open_artifacts())
    ]


def _runs(output: Path) -> Rows:
    """Return the runs of the folder and of the object store; those of the folder alone if there is no store."""
    from poolbench_driver.cluster.session import open_artifacts
    from poolbench_driver.records import RunRecords, Runs

    records = None
    try:
        records = RunRecords(open_artifacts().store)
        runs = Runs(output, records).all()
    except PoolbenchError as error:
        typer.echo(f"note: only the runs below {output} are listed: {error}", err=True)
        runs = Runs(output, None).all()
    return [{"id": run.id, **_measured(run, records), **run.state, "local": run.folder is not None} for run in runs]


def _measured(run: Run, records: RunRecords | None) -> dict[str, str]:
    """Return model and first concepts of a run; nothing where its configuration cannot be read."""
    try:
        config = run.folder.config() if run.folder else records.config(run.id) if records else None
    except PoolbenchError:
        config = None
    if config is None:
        return {}
    from poolbench_driver.pages.text import listed

    return {"model": config.model, "concepts": listed(config.concept_ids)}


KINDS: dict[str, Callable[[Path], Rows]] = {
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


#: The columns that fit into 80 characters, where a kind has more.
NARROW = {
    "strategies": ("id", "family", "board", "summary"),
    "suites": ("id", "summary"),
    "runs": ("id", "model", "concepts", "state", "updated_at"),
    "probing-sets": ("id", "type", "phenomenon", "fidelity"),
    "directions": ("concept", "strategy", "layer", "d1", "gain", "fluent up to", "model"),
}


def ls(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))],
    output: Annotated[Path, typer.Option(help="Folder that runs lie in.")] = Path("runs"),
    as_json: AsJson = False,
    wide: Annotated[bool, typer.Option("--wide", help="All columns.")] = False,
) -> None:
    """List strategies, concepts, models, scorers, directions, activations, runs, suites, stories or autoencoders."""
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS)
    show_list(kind, KINDS[kind](output), as_json=as_json, wide=wide)


def show_list(kind: str, rows: Rows, *, as_json: bool, wide: bool) -> None:
    """Print a list: what matters in 80 columns, or everything."""
    if as_json:
        print_data(rows)
    elif rows:
        columns = tuple(dict.fromkeys(name for row in rows for name in row))
        cells = rows if wide else [{name: _short(name, value) for name, value in row.items()} for row in rows]
        print_table(cells, columns if wide else NARROW.get(kind, columns), whole=1)
    else:
        typer.echo(f"no {kind}", err=True)


def _short(name: str, value: Any) -> Any:
    """Return a time without year and seconds, and other values as they are."""
    return str(value)[5:16].replace("T", " ") if name == "updated_at" else value
