"""The known probing sets: those of this package, of archives and of folders of users; and those that are absent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from poolbench.errors import ConfigError, CorpusError, PoolbenchError, UnknownNameError
from poolbench_corpora.probing.data import ProbingData, probing_data
from poolbench_corpora.probing.readers import FAMILIES, READERS, samples_of
from poolbench_corpora.probing.samples import Note, ProbingFamily, ProbingSet, read_definition
from poolbench_corpora.real.documents import has_archive

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
                source = _first_match(name, raw["sources"])
                set_by_name[name] = SuiteSet(name, kind, phenomenon, inputs.get(name, "text"), source)
    return set_by_name


class ProbingSets:
    """Probing sets by id; definitions are read at first use, and ConfigError is raised for wrong ones.

    Args:
        folders: Folders of definitions, searched after those of this package.
        archives: Folder of the real-text archives; by default POOLBENCH_REAL_TEXT.
    """

    def __init__(self, *folders: Path, archives: Path | None = None) -> None:
        self.archives = archives
        self._folders = folders

    @cached_property
    def _definitions(self) -> Mapping[str, ProbingSet]:
        definition_by_id = _own_definitions()
        for folder in self._folders:
            definition_by_id = _with_definitions(definition_by_id, folder)
        return definition_by_id

    def all(self) -> list[ProbingSet]:
        """Return every set, ordered by id.

        Members of families are among them where the archives are at hand; an imported set of the same id replaces one.
        `is_here` says of the others whether they can be read.
        """
        sets = [spec for spec in self._definitions.values() if not isinstance(spec, ProbingFamily)]
        for family in self._families():
            try:
                sets += [spec for spec in self._members(family) if spec.id not in self._definitions]
            except CorpusError:  # no archives
                continue
        return sorted(sets, key=lambda spec: spec.id)

    def get(self, name: str) -> ProbingSet:
        """Return the set of this id.

        Raise UnknownNameError with the nearest ids, or CorpusError if it may be in archives that are not at hand.
        """
        set_by_id = {spec.id: spec for spec in self.all()}
        if name not in set_by_id:
            self._require_archives(name)
            raise UnknownNameError("probing set", name, set_by_id)
        return set_by_id[name]

    def choose(self, patterns: Iterable[str]) -> list[ProbingSet]:
        """Return the sets whose ids match one of the patterns, such as `blimp-*`, each once. Raise as `get` does."""
        sets = self.all()
        set_by_id: dict[str, ProbingSet] = {}
        for pattern in patterns:
            matching = [spec for spec in sets if fnmatchcase(spec.id, pattern)]
            if not matching:
                self._require_archives(pattern)
                raise UnknownNameError("probing set", pattern, [spec.id for spec in sets])
            set_by_id |= {spec.id: spec for spec in matching}
        return list(set_by_id.values())

    def is_here(self, definition: ProbingSet) -> bool:
        """Return whether a set can be read here: without the archive that it is in, it cannot."""
        reader = READERS.get(definition.reader)
        return reader is None or reader.archive is None or has_archive(self.archives, reader.archive)

    def absent(self) -> list[SuiteSet]:
        """Return the sets of the public suite that no set here is, or stands for with the same texts and labels."""
        same = [spec for spec in self.all() if spec.fidelity == "same" and self.is_here(spec)]
        here = {name for spec in same for name in (spec.id, spec.stands_for)}
        return [spec for name, spec in suite_sets().items() if name not in here]

    def read(self, definition: ProbingSet, seed: int = 0) -> ProbingData:
        """Return the tables of a set. Raise CorpusError or ConfigError if it cannot be read, or is empty."""
        return probing_data(definition, samples_of(definition, self.archives), seed)

    def read_all(
        self, definitions: Iterable[ProbingSet], seed: int = 0, progress: Callable[[str], None] = lambda name: None
    ) -> tuple[dict[str, ProbingData], list[Note]]:
        """Return the tables of several sets by id, and a note for each set that cannot be read."""
        data_by_id: dict[str, ProbingData] = {}
        notes: list[Note] = []
        for definition in definitions:
            progress(definition.id)
            try:
                data_by_id[definition.id] = self.read(definition, seed)
            except PoolbenchError as error:
                notes.append(Note(definition.id, str(error)))
        return data_by_id, notes

    def _families(self) -> list[ProbingFamily]:
        return [spec for spec in self._definitions.values() if isinstance(spec, ProbingFamily)]

    def _require_archives(self, name: str) -> None:
        for family in self._families():
            if name.startswith(family.id):
                self._members(family)

    def _members(self, family: ProbingFamily) -> list[ProbingSet]:
        list_members = READERS[family.reader].members
        return [_member(family, name) for name in (list_members(self.archives) if list_members else ())]


def _member(family: ProbingFamily, name: str) -> ProbingSet:
    member = f"{family.id}-{name}"
    entry = suite_sets().get(member)
    default = (family.type, family.phenomenon)
    type_, phenomenon = (entry.type, entry.phenomenon) if entry else _first_match(name, family.others, default)
    fields = family.model_dump(exclude={"others"}) | {
        "id": member,
        "type": type_,
        "phenomenon": phenomenon,
        "parameters": {**family.parameters, "member": name},
    }
    return ProbingSet.model_validate(fields)


def _first_match(name: str, patterns: Mapping[str, Any], otherwise: Any = None) -> Any:
    return next((value for pattern, value in patterns.items() if fnmatchcase(name, pattern)), otherwise)


@cache  # many commands ask, and these files do not change
def _own_definitions() -> Mapping[str, ProbingSet]:
    return _with_definitions({}, SETS)


def _with_definitions(definitions: Mapping[str, ProbingSet], folder: Path) -> dict[str, ProbingSet]:
    """Return definitions by id, with those of a folder added."""
    definition_by_id = dict(definitions)
    for path in _definition_files(folder):
        definition = read_definition(path, FAMILIES)
        if definition.id in definition_by_id:
            raise ConfigError(f"probing set {path}: the id {definition.id!r} is taken; choose another id")
        definition_by_id[definition.id] = definition
    return definition_by_id


def _definition_files(folder: Path) -> Sequence[Path]:
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise ConfigError(f"{folder} holds no definitions of probing sets (files that end in .yaml)")
    return paths


PROBING_SETS = ProbingSets()
"""The sets of this package, read at first use."""
