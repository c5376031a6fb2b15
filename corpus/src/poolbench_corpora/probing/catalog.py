"""The known probing sets: of this package, that ship, and of folders of users; and those that are absent."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from poolbench.errors import ConfigError, PoolbenchError, UnknownNameError
from poolbench_corpora.probing.data import ProbingData, probing_data
from poolbench_corpora.probing.readers import samples_of
from poolbench_corpora.probing.samples import Note, ProbingSet, read_definition
from poolbench_corpora.probing.shipped import SETS as TABLE_OF_SETS
from poolbench_corpora.probing.shipped import are_shipped, read_sets, shipped_folders

SETS = Path(str(files("poolbench_corpora.probing"))) / "sets"


@dataclass(frozen=True)
class SuiteSet:
    """A set of the public suite."""

    id: str
    type: str
    phenomenon: str
    input: str
    source: str


@cache
def suite_sets() -> dict[str, SuiteSet]:
    """Return the sets of the public suite by id."""
    raw: dict[str, Any] = yaml.safe_load((SETS.parent / "suite.yaml").read_text("utf-8"))
    inputs = {name: kind for kind, names in raw["inputs"].items() for name in names}
    set_by_name = {}
    for kind, phenomena in raw["sets"].items():
        for phenomenon, names in phenomena.items():
            for name in names:
                source = first_match(name, raw["sources"])
                set_by_name[name] = SuiteSet(name, kind, phenomenon, inputs.get(name, "text"), source)
    return set_by_name


class ProbingSets:
    """Probing sets by id: those of this package, those that ship as tables, and those of folders.

    Definitions are read at first use. ConfigError is raised for wrong ones, CorpusError for a damaged table of them.

    Args:
        folders: Folders of definitions. A set of one replaces the set that ships under the same id.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders

    @cached_property
    def _definitions(self) -> Mapping[str, ProbingSet]:
        shipped = [spec for folder in (shipped_folders() if are_shipped() else ()) for spec in read_sets(folder)]
        definition_by_id = {spec.id: spec for spec in shipped}
        replaceable = set(definition_by_id)
        for folder in (SETS, *self._folders):
            for path, definition in _definitions_in(folder):
                if definition.id in definition_by_id and definition.id not in replaceable:
                    raise ConfigError(f"probing set {path}: the id {definition.id!r} is taken; choose another id")
                definition_by_id[definition.id] = definition
                replaceable.discard(definition.id)
        return dict(sorted(definition_by_id.items()))

    def all(self) -> list[ProbingSet]:
        """Return every set, ordered by id."""
        return list(self._definitions.values())

    def get(self, name: str) -> ProbingSet:
        """Return the set of this id.

        Raise UnknownNameError with the nearest ids, or as `shipped_folders` if the sets that ship are not at hand.
        """
        if name not in self._definitions:
            shipped_folders()
            raise UnknownNameError("probing set", name, self._definitions)
        return self._definitions[name]

    def choose(self, patterns: Iterable[str]) -> list[ProbingSet]:
        """Return the sets whose ids match one of the patterns, such as `blimp-*`, each once. Raise as `get` does."""
        set_by_id: dict[str, ProbingSet] = {}
        for pattern in patterns:
            matching = [spec for spec in self.all() if fnmatchcase(spec.id, pattern)]
            if not matching:
                shipped_folders()
                raise UnknownNameError("probing set", pattern, self._definitions)
            set_by_id |= {spec.id: spec for spec in matching}
        return list(set_by_id.values())

    def absent(self) -> list[SuiteSet]:
        """Return the sets of the public suite that no set here is, or stands for with the same texts and labels."""
        same = [spec for spec in self.all() if spec.fidelity == "same"]
        here = {name for spec in same for name in (spec.id, spec.stands_for)}
        return [spec for name, spec in suite_sets().items() if name not in here]

    def read(self, definition: ProbingSet, seed: int = 0) -> ProbingData:
        """Return the tables of a set. Raise CorpusError or ConfigError if it cannot be read, or is empty."""
        return probing_data(definition, samples_of(definition), seed)

    def read_all(self, definitions: Iterable[ProbingSet], seed: int = 0) -> tuple[dict[str, ProbingData], list[Note]]:
        """Return the tables of several sets by id, and a note for each set that cannot be read."""
        data_by_id: dict[str, ProbingData] = {}
        notes: list[Note] = []
        for definition in definitions:
            try:
                data_by_id[definition.id] = self.read(definition, seed)
            except PoolbenchError as error:
                notes.append(Note(definition.id, str(error)))
        return data_by_id, notes


def first_match(name: str, patterns: Mapping[str, Any], otherwise: Any = None) -> Any:
    """Return the value of the first pattern that a name matches."""
    return next((value for pattern, value in patterns.items() if fnmatchcase(name, pattern)), otherwise)


def _definitions_in(folder: Path) -> Iterator[tuple[Path, ProbingSet]]:
    """Yield the definitions of a folder: those of its YAML files, and of its table of sets if it has one."""
    paths = sorted(folder.glob("*.yaml"))
    table = folder / TABLE_OF_SETS
    if not paths and not table.is_file():
        raise ConfigError(f"{folder} holds no definitions of probing sets (files that end in .yaml, or {table.name})")
    for path in paths:
        yield path, _own(path) if folder == SETS else read_definition(path)
    if table.is_file():
        yield from ((table, definition) for definition in read_sets(folder))


@cache  # many commands ask, and these files do not change
def _own(path: Path) -> ProbingSet:
    return read_definition(path)


PROBING_SETS = ProbingSets()
"""The sets of this package and those that ship, read at first use."""
