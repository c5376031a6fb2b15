"""The published result tables: read from the files that ship, from a checkout or from a folder of the same format."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from poolbench.config import MODEL_PRESETS
from poolbench.errors import ConfigError, UnknownModelError, UnknownNameError
from poolbench_corpora.io import concept_folder
from poolbench_corpora.reading import SentFile, is_missing, records
from poolbench_driver.config import corpus_folder
from poolbench_driver.contract.published import (
    PublishedCell,
    PublishedColumn,
    PublishedModel,
    PublishedStrategy,
    PublishedTable,
)
from poolbench_driver.suites.poolbench.presets import TABLES

#: Where a checkout has its figures of D1.
_AUROC = Path("results/auroc")

_DATA = files("poolbench_driver.suites.poolbench.published_table").joinpath("data")


def published_table(name: str = "official") -> PublishedTable:
    """Return a published table by its name, or read it from a checkout of its repository or from another folder.

    A checkout adds columns of the constructions C2 to C5 to the shipped table. Any other folder needs `source.yaml` and
    `cells-<model>.csv`.

    Raises:
        UnknownNameError: `name` is neither the name of a table nor a folder.
        ConfigError: A file of the folder is missing or malformed.
    """
    if name in TABLES:
        return _shipped()
    folder = Path(name)
    if not folder.is_dir():
        raise UnknownNameError("table", name, TABLES)
    try:
        return _read(_DATA, folder) if (folder / _AUROC).is_dir() else _read(folder)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"table {folder}: {type(error).__name__}: {error}") from None


def settings_of_run(table: PublishedTable, model: PublishedModel, corpus: str) -> dict[str, Any]:
    """Return the settings of a run that measures the cells of a model of a table.

    Args:
        table: The table.
        model: The model.
        corpus: Folder with the published corpus, or another source of passages. If the folder has no concept of
            the table, or does not exist, the settings name all concepts of the table.
    """
    metrics = {metric.partition(".")[0] for column in table.columns for metric in column.ours.values()}
    local_concepts = [name for name in table.concepts if concept_folder(corpus_folder(corpus), name).is_dir()]
    return {
        "preset": "card",
        "model": model.preset,
        "metrics": sorted(metrics),
        "concepts": local_concepts or list(table.concepts),
        "strategies": [strategy.ours for strategy in table.strategies if strategy.ours],
        "layers": [model.best_layer],
        "steering_layer": model.best_layer,
        "corpus": {"source": corpus},
    }


@cache
def _shipped() -> PublishedTable:
    return _read(_DATA)


def _read(folder: Traversable, checkout: Path | None = None) -> PublishedTable:
    source = yaml.safe_load(folder.joinpath("source.yaml").read_text("utf-8"))
    columns = tuple(PublishedColumn(**column) for column in source.pop("columns"))
    constructions = [_Construction(**construction) for construction in source.pop("constructions", ())]
    models = tuple(PublishedModel(**{**m, "layers": tuple(m["layers"])}) for m in source.pop("models"))
    if unknown := [model.preset for model in models if model.preset not in MODEL_PRESETS]:
        raise UnknownModelError(unknown[0], MODEL_PRESETS)
    cells = [cell for model in models for cell in _cells(folder, model.name, columns)]
    if checkout is not None:
        columns += tuple(construction.column for construction in constructions)
        cells += [cell for model in models for part in constructions for cell in part.cells(checkout, model, cells)]
    return PublishedTable(
        columns=columns,
        models=models,
        strategies=tuple(PublishedStrategy(**strategy) for strategy in source.pop("strategies")),
        cells=tuple(cells),
        source=source,
        layer_agreement=_layer_agreement(folder),
    )


@dataclass(frozen=True)
class _Construction:
    """AUROC by another construction of the direction, in files of a checkout."""

    folder: str
    definition: str
    ours: str

    @property
    def column(self) -> PublishedColumn:
        definition = f"AUROC of the projection on {self.definition}; otherwise as D1_auroc"
        differs = "grouped folds, and vectors without BOS and attention sinks"
        name = f"D1_auroc_{self.folder.partition('_')[0]}"
        return PublishedColumn(name, definition, differs, {"corrected": self.ours}, low=0, high=1)

    def cells(self, checkout: Path, model: PublishedModel, others: Sequence[PublishedCell]) -> Iterator[PublishedCell]:
        """Yield the value of each strategy and concept of a model. The value is None if the checkout has no value."""
        layer = f"layer_{model.best_layer}"
        file = checkout / _AUROC / model.name / self.folder / layer / f"{model.name}_auroc_results.json"
        figures = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        for strategy, concept in dict.fromkeys((cell.strategy, cell.concept) for cell in others):
            value = figures.get(f"{concept}_{strategy}", {}).get("auroc")
            yield PublishedCell(model.name, strategy, concept, self.column.id, value)


def _layer_agreement(folder: Traversable) -> dict[tuple[str, str], float]:
    """Return the agreement of layers by model and concept. A table without the file has none."""
    file = folder.joinpath("layer-agreement.csv")
    rows = records(SentFile(file.name, file.read_bytes())) if file.is_file() else ()
    return {(model, row["concept"]): float(row[model]) for _, row in rows for model in row if model != "concept"}


def _cells(folder: Traversable, model: str, columns: tuple[PublishedColumn, ...]) -> Iterator[PublishedCell]:
    file = folder.joinpath(f"cells-{model}.csv")
    for _, row in records(SentFile(file.name, file.read_bytes())):
        for column in columns:
            yield PublishedCell(model, row["strategy"], row["concept"], column.id, _number(row[column.id]))


def _number(text: str) -> float | None:
    return None if is_missing(text) else float(text)
