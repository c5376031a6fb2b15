"""Imported activations: published per-token states as kept states, measured without the model.

Each (concept, split, layer) becomes one STATES artifact, whose key holds a hash of the files. The record of an
import is `activations/<name>.json`; `import:<name>` is then a model id.
"""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from poolbench.config import ModelRef, StrictModel
from poolbench.contracts.keys import digest
from poolbench.contracts.wire import ACTIVATIONS_FOLDER
from poolbench.errors import ConfigError, IntegrityError, NotFoundError, UnknownNameError
from poolbench.storage import Artifacts
from poolbench.storage.artifacts import seal, unseal
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.models import ModelInfo

PREFIX = "import:"
_FOLDER = f"{ACTIVATIONS_FOLDER}/"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class StatesEntry(StrictModel):
    """The states of one concept, split and layer."""

    concept: str
    split: str
    layer: int
    key: str


class ActivationImport(StrictModel):
    """The record of an import.

    Attributes:
        bos: Whether position 0 of every passage is a special token.
    """

    name: str
    corpus: str
    width: int
    bos: bool
    states: tuple[StatesEntry, ...]
    created_at: str = ""

    @property
    def revision(self) -> str:
        """Return hash of what was imported: the same files give the same one."""
        return "import-" + digest(sorted(entry.key for entry in self.states), 12)

    @property
    def concepts(self) -> list[str]:
        """Return the concepts in the order of the import."""
        return list(dict.fromkeys(entry.concept for entry in self.states))

    @property
    def layers(self) -> list[int]:
        """Return the blocks, ascending."""
        return sorted({entry.layer for entry in self.states})

    def settings(self) -> dict[str, Any]:
        """Return the settings of a run that measures the whole import."""
        return {
            "model": PREFIX + self.name,
            "corpus": {"source": self.corpus},
            "concepts": self.concepts,
            "metrics": ["d1"],
        }


def is_imported(model: str) -> bool:
    """Return whether a model id names imported activations."""
    return model.startswith(PREFIX)


def checked_name(name: str) -> str:
    """Return the name unchanged if it is valid in a path. Raise ConfigError otherwise."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use up to 64 letters, digits, '.', '_' and '-', the first no sign")
    return name


def save_import(artifacts: Artifacts, record: ActivationImport) -> None:
    """Store the record of an import. An existing record of this name is replaced."""
    stamped = record.model_copy(update={"created_at": datetime.now(UTC).isoformat(timespec="seconds")})
    artifacts.store.put(f"{_FOLDER}{record.name}.json", seal(stamped.model_dump_json()))


def load_import(artifacts: Artifacts, name: str) -> ActivationImport:
    """Return the import of this name. Raise UnknownNameError if there is none, IntegrityError if it is damaged."""
    path = f"{_FOLDER}{checked_name(name)}.json"
    try:
        return ActivationImport.model_validate(unseal(artifacts.store.get(path)))
    except NotFoundError:
        raise UnknownNameError("import of activations", name, import_names(artifacts)) from None
    except ValueError:
        command = f"poolbench-driver import activations FOLDER --name {name} --corpus CORPUS --layers LAYERS"
        raise IntegrityError(f"{path} is damaged; import the activations again: `{command}`") from None


def import_names(artifacts: Artifacts) -> list[str]:
    """Return the names of all imports."""
    return [Path(info.path).stem for info in artifacts.store.list(_FOLDER) if info.path.endswith(".json")]


def list_imports(artifacts: Artifacts) -> list[ActivationImport]:
    """Return all imports."""
    return [load_import(artifacts, name) for name in import_names(artifacts)]


def imported_keys(artifacts: Artifacts) -> set[str]:
    """Return the states of all imports, which no run makes again."""
    return {entry.key for record in list_imports(artifacts) for entry in record.states}


def imported_model(config: ConceptsConfig, artifacts: Artifacts) -> ModelInfo:
    """Return the model that an import represents. Raise ConfigError if the import cannot serve the run."""
    record = load_import(artifacts, config.model.removeprefix(PREFIX))
    if set(config.metrics) != {"d1"}:
        raise ConfigError(f"{config.model} are states without a model, and cannot be steered; use --metrics d1")
    if config.include_bos:
        raise ConfigError("include_bos is settled when activations are imported; import them with --no-bos")
    if unknown := [name for name in config.concepts if name not in record.concepts]:
        concept_names = ", ".join(record.concepts)
        raise ConfigError(f"{config.model} has no concept {unknown[0]}; it has {concept_names} (--concepts)")
    states = {(entry.concept, entry.split, entry.layer): entry.key for entry in record.states}
    if gone := [key for key in states.values() if not artifacts.exists(key)]:
        command = f"poolbench-driver import activations FOLDER --name {record.name} --corpus {record.corpus}"
        raise NotFoundError(
            f"{config.model}: {len(gone)} of its artifacts are gone; import the activations again: `{command}`"
        )
    ref = ModelRef(config.model, config.model, record.revision, "as imported")
    return ModelInfo(ref, max(record.layers) + 1, record.width, states)
