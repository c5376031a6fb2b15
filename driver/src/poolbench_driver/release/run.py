"""Export a finished run: its tables, configuration, manifest and report, and the versions that made it.

The files of the run lie in a folder of its id, as `poolbench-driver leaderboard RUN --output FOLDER` reads them. They
hold figures and scores, of sensitive concepts too, and no vector; texts only where the page of a suite shows examples.
"""

import json
import platform
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench.errors import IntegrityError, NotFoundError
from poolbench.storage import Artifacts
from poolbench_driver.config import ReadingConfig, RunConfig
from poolbench_driver.contract.evidence import EVIDENCE
from poolbench_driver.corpora.sources import OWN
from poolbench_driver.dataset_folder import (
    CROISSANT,
    RecordFields,
    croissant,
    hub_header,
    render_card,
    replacing,
    require_same,
    sha256_of,
    write_release,
)
from poolbench_driver.records import Run, is_published, manifest_files


def release_facts(kind: str, run: Run, model: str, revision: str | None, licence: str, command: str) -> dict[str, Any]:
    """Return the fields of the manifest that identify a release and its origin."""
    return {
        "kind": kind,
        "version": 1,
        "run_id": run.id,
        "config_hash": run.config.config_hash(),
        "code_version": __version__,
        "model": model,
        "model_revision": revision,
        "licence": licence,
        "command": command,
    }


def origin(model: str, config: RunConfig, command: str, licence: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of a card: model, facts of its kind (`own`), passages, configuration, command and licence."""
    return {
        "model": model,
        **own,
        "passages": passages_source(config),
        "configuration": config.config_hash(),
        "made by": f"PoolBench {__version__}, `{command}`",
        "licence": licence,
    }


def passages_source(config: RunConfig) -> str:
    """Return the source of passages. The setting applies only to concepts without passages of their own."""
    has_corpus = [bool(CONCEPTS.get(name).corpus) for name in config.concept_ids]
    source = config.corpus.source if isinstance(config, ReadingConfig) else config.data_name
    return OWN if has_corpus and all(has_corpus) else f"{source}+{OWN}" if any(has_corpus) else source


KIND = "poolbench-run"
ENVIRONMENT = "environment.json"
_MANIFEST, _PAGE = "manifest.json", ("report/index.html", "report/view.json")
_LEAD = "A run of the suite {suite} of PoolBench ({summary}). It holds figures, scores and rankings, {texts}."
_TEXTS = {
    False: "and no passage, vector or text",
    True: "no vector, and of its texts the examples that the report shows: their licence applies to these",
}


def export_run(
    run: Run,
    artifacts: Artifacts,
    keys: Iterable[str],
    output: Path,
    *,
    licence: str,
    command: str,
    with_texts: bool = True,
    on_part: Callable[[int], object] = lambda parts: None,
) -> dict[str, Any]:
    """Write a run into `output` and return the manifest.

    Args:
        with_texts: Whether to include the page, and tables that show examples of texts.
        keys: Keys of the artifacts that the run needs. `environment.json` names their producers.
        on_part: Called with 1 after each of these keys.

    Raises:
        InputError: `output` holds something else.
        NotFoundError: The run has not ended.
        IntegrityError: A file of the run is not the one that its manifest names.
    """
    files = _files(run, with_texts)
    results = run.tables["results"].slice(0, 1).to_pylist()
    model: dict[str, Any] = results[0] if results else {"model": run.config.model, "model_revision": None}
    output = output.resolve()
    require_same(output, {"kind": KIND, "run_id": run.id})
    with replacing(output) as partial:
        for name in files:
            target = partial / run.id / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run.file(name), target)
        environment = {"run": _made_by(artifacts, keys, on_part), "exported_on": _installed()}
        (partial / ENVIRONMENT).write_text(json.dumps(environment, indent=1) + "\n", "utf-8")
        (partial / CROISSANT).write_text(_croissant(partial, run, files, licence), "utf-8")
        card = _card(run, files, model, licence, command, with_texts)
        facts = release_facts(KIND, run, model["model"], model["model_revision"], licence, command)
        return write_release(partial, card, {**facts, "missing": []}, {})


def _files(run: Run, with_texts: bool) -> list[str]:
    """Return the files of a run by its manifest, including the manifest. Raise IntegrityError if a file has changed."""
    try:
        listed = manifest_files(run.file(_MANIFEST).read_bytes(), run.file(_MANIFEST))
    except FileNotFoundError:
        raise NotFoundError(f"run {run.id} has not ended; `poolbench-driver run` finishes it") from None
    # The licence of texts that a run kept for its readers is not known here.
    left_out = {EVIDENCE, *(() if with_texts else run.suite.text_tables)}
    # A run that was fetched from another machine has no report, and `poolbench-driver report` may have changed one.
    names = [name for name in listed if is_published(name) and name.removesuffix(".parquet") not in left_out]
    for name in names:
        if not run.file(name).is_file() or sha256_of(run.file(name)) != listed[name]:
            remedy = "the same `poolbench-driver run` command writes it again, from the object store"
            raise IntegrityError(f"{run.file(name)} is not as its manifest says; {remedy}")
    page = _PAGE if with_texts else ()
    if not all(run.file(name).is_file() for name in page):
        raise NotFoundError(f"run {run.id} has no report here; `poolbench-driver report {run.id}` writes it")
    return [*names, *page, _MANIFEST]


#: Types of columns in Croissant by how those of Arrow begin; one of another type is left out.
_TYPES = {"string": "sc:Text", "double": "sc:Float", "bool": "sc:Boolean", "int": "sc:Integer"}


def _croissant(partial: Path, run: Run, files: Iterable[str], licence: str) -> str:
    """Return the metadata of the tables of a run that have rows."""
    described = dict[str, tuple[str, RecordFields]]()
    for name in _tables(partial / run.id, files):
        file = partial / run.id / name
        types = {field.name: str(field.type).rstrip("0123456789") for field in pq.read_schema(file)}
        fields = {column: (_TYPES[kind], column) for column, kind in types.items() if kind in _TYPES}
        described[f"{run.id}/{name}"] = sha256_of(file), fields
    about = f"Figures and scores of the run {run.id} of PoolBench."
    return croissant(run.id, about, [licence], f"1.0.0+{run.config.config_hash()}", described)


def _tables(folder: Path, files: Iterable[str]) -> list[str]:
    """Return the tables among some files of a run that have rows."""
    tables = [name for name in files if name.endswith(".parquet")]
    return [name for name in tables if pq.read_metadata(folder / name).num_rows]


def _made_by(artifacts: Artifacts, keys: Iterable[str], on_part: Callable[[int], object]) -> dict[str, Any]:
    """Return code versions and accelerators by step, from the manifests of artifacts that are still there."""
    facts_by_step: dict[str, dict[str, set[str]]] = defaultdict(lambda: {"code_version": set(), "accelerator": set()})
    for key in sorted(keys):
        try:
            producer = artifacts.manifest(key).producer
        except (NotFoundError, IntegrityError):
            producer = {}
        for name, values in facts_by_step[key.rpartition(".")[0]].items():
            if producer.get(name):
                values.add(str(producer[name]))
        on_part(1)
    return {
        step: {name: sorted(values) for name, values in facts.items()} for step, facts in sorted(facts_by_step.items())
    }


def _installed() -> dict[str, Any]:
    """Return Python, platform and packages of this machine, which ran the services if the cluster is local."""
    packages = {
        distribution.metadata["Name"].lower(): distribution.version
        for distribution in distributions()
        if distribution.metadata["Name"]
    }
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _card(run: Run, files: Sequence[str], model: dict[str, Any], licence: str, command: str, with_texts: bool) -> str:
    config = run.config
    run_facts = {
        "run": run.id,
        "suite": config.suite,
        **({"concepts": ", ".join(config.concept_ids)} if config.concept_ids else {}),
        "budget": config.budget.name,
    }
    model_line = f"{model['model']} (revision {model['model_revision'] or 'unknown'})"
    reading = [
        *("", "| file | what |", "|---|---|"),
        *([f"| `{run.id}/{_PAGE[0]}` | the report, one page |"] if _PAGE[0] in files else []),
        *(f"| `{run.id}/{name}` | table |" for name in files if name.endswith(".parquet")),
        f"| `{run.id}/config.resolved.yaml` | all settings: `poolbench-driver run` with it makes the run again |",
        f"| `{run.id}/{_MANIFEST}` | facts of the run, and size and hash of its files |",
        f"| `{ENVIRONMENT}` | versions: of the code by step, and of the packages of the machine that exported |",
        "",
        f"`poolbench-driver leaderboard {run.id} --output .` prints its boards.",
    ]
    suite = run.suite
    lead = _LEAD.format(suite=suite.id, summary=suite.summary, texts=_TEXTS[with_texts and bool(suite.text_tables)])
    configs = [(name.removesuffix(".parquet"), f"{run.id}/{name}") for name in _tables(run.path, files)]
    header = hub_header(licence, configs, ("poolbench", suite.id, "benchmark"), pretty_name=f"PoolBench run {run.id}")
    return render_card(header, "PoolBench run", lead, origin(model_line, config, command, licence, run_facts), reading)
