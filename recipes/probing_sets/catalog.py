"""The probing sets that the archives yield: definitions in `sets/`, and families with a set per file of an archive."""

from collections.abc import Mapping
from pathlib import Path

from recipes.probing_sets.readers import MEMBERS, readers

from poolbench.config.base import read_yaml
from poolbench_corpora.probing import ProbingData, ProbingSet, probing_data, suite_sets
from poolbench_corpora.probing.catalog import first_match
from poolbench_corpora.probing.readers import samples_of
from poolbench_corpora.probing.samples import Type, Words, definition_of

SETS = Path(__file__).with_name("sets")


class ProbingFamily(ProbingSet):
    """Sets that differ in one file of an archive; `id` is what their ids begin with.

    Type and phenomenon of a member are those of the public suite, or of the first pattern of `others` that matches it,
    or the family's own.
    """

    others: Mapping[str, tuple[Type, Words]] = {}


def archive_sets(archives: Path | None = None) -> list[ProbingSet]:
    """Return the sets, ordered by id. Raise CorpusError without the archives."""
    paths = sorted(SETS.glob("*.yaml"))
    definitions = [definition_of(read_yaml(path, "probing set"), str(path), ProbingFamily) for path in paths]
    sets = [
        _set(definition, name)
        for definition in definitions
        for name in (MEMBERS[definition.reader](archives) if definition.reader in MEMBERS else [""])
    ]
    return sorted(sets, key=lambda definition: definition.id)


def read_set(definition: ProbingSet, archives: Path | None = None) -> ProbingData:
    """Return the tables of a set of the archives. Raise CorpusError or ConfigError if it cannot be read."""
    return probing_data(definition, samples_of(definition, readers(archives)))


def _set(family: ProbingFamily, name: str) -> ProbingSet:
    """Return a member of a family; without a name, the definition as a set of its own."""
    fields = family.model_dump(exclude={"others"})
    if name:
        member = f"{family.id}-{name}"
        entry = suite_sets().get(member)
        default = (family.type, family.phenomenon)
        kind, phenomenon = (entry.type, entry.phenomenon) if entry else first_match(name, family.others, default)
        fields |= {"id": member, "type": kind, "phenomenon": phenomenon}
        fields["parameters"] = {**family.parameters, "member": name}
    return ProbingSet.model_validate(fields)
