"""Steered texts of sensitive concepts are deleted once all that this run wants of them is committed.

Erased texts keep their key and their receipts, so nothing generates them again while their scores are there. A task
that still has to read some, of a neighbour that was added later, makes them missing first; then they are generated,
scored and deleted once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from itertools import chain

from poolbench.contracts.keys import is_restricted
from poolbench.errors import DamagedError
from poolbench.storage import Artifacts, Manifest, ObjectInfo
from poolbench.storage.erasure import erase_texts, receipts_path
from poolbench.storage.manifest import FOLDERS, manifest_path
from poolbench_driver.plan import Plan

TEXTS = "texts"


class Erasure:
    """The restricted texts of a plan, and what must be committed before they go."""

    def __init__(self, plan: Plan, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        self.erased: set[str] = set()  # nothing is left to delete
        self.companions = dict(_restricted_texts(plan))
        self.readers: dict[str, set[str]] = defaultdict(set)
        for task in plan.tasks.values():
            for key in set(task.inputs.values()) & self.companions.keys():
                self.readers[key].update(task.outputs.values())

    def needed_again(self, committed: Set[str], among: Iterable[str] | None = None) -> set[str]:
        """Keys of erased texts that a task has yet to read, and of the likelihoods that were measured with them.

        Args:
            committed: Keys of the committed artifacts.
            among: Keys to look at; by default all.
        """
        there = self.companions.keys() & (committed if among is None else committed & set(among))
        unread = [key for key in there if not self.readers[key] <= committed]
        erased = [key for key in unread if (manifest := self._readable(key)) and manifest.erased]
        return set(erased).union(*(self.companions[key] for key in erased))

    def invalidate(self, keys: Iterable[str]) -> None:
        """Delete what is needed again completely, so that it is generated again; texts come last.

        An interruption then leaves texts that still say that they are erased, and the next run starts here again.
        """
        for key in sorted(keys, key=lambda key: key in self.companions):
            self.artifacts.delete(key)
            self.erased.discard(key)

    def look(self) -> None:
        """Finds out by one listing which texts were erased to the end before."""
        whole = ((key, {manifest_path(key), receipts_path(key)}) for key in self.companions)
        files = self._files()
        self.erased |= {key for key, left in whole if {info.path for info in files.get(key, ())} == left}

    def torn(self, older_than_s: float) -> list[str]:
        """Return old files that killed attempts left beside committed texts."""
        found = []
        for key, infos in self._files().items():
            if manifest_path(key) in {info.path for info in infos}:
                if (manifest := self._readable(key)) is None:
                    continue
                named = {manifest_path(key), *(entry.path for entry in manifest.files.values())}
                found += [info.path for info in infos if info.path not in named and info.modified_s <= older_than_s]
        return found

    def _readable(self, key: str) -> Manifest | None:
        """The manifest of a committed artifact; None where it is damaged, which its readers find out."""
        try:
            return self.artifacts.manifest(key)
        except DamagedError:
            return None

    def _files(self) -> dict[str, list[ObjectInfo]]:
        files: dict[str, list[ObjectInfo]] = defaultdict(list)
        if self.companions:
            for info in self.artifacts.store.list(f"{FOLDERS[1]}/"):
                files[info.path.split("/")[1]].append(info)
        return {key: infos for key, infos in files.items() if key in self.companions}

    def due(self, committed: Set[str]) -> list[str]:
        """Texts that are there although all that reads them is committed."""
        there = (self.companions.keys() & committed) - self.erased
        return sorted(key for key in there if self.readers[key] <= committed)

    def erase(self, keys: Iterable[str]) -> None:
        """Deletes the texts."""
        for key in keys:
            erase_texts(self.artifacts, key)
            self.erased.add(key)


def scored_texts(committed: Set[str], idle: Iterable[Erasure], busy: Iterable[Erasure]) -> set[str]:
    """Texts to delete in upkeep: some idle run has all scores of them, and no run at work may still read them."""
    due: set[str] = set()
    for erasure in idle:
        erasure.look()
        due.update(erasure.due(committed))
    return due.difference(*(erasure.companions for erasure in busy))


def _restricted_texts(plan: Plan) -> Iterable[tuple[str, set[str]]]:
    """Key of each restricted text, with the other outputs that were made from the very same texts."""
    steered = (task.outputs for task in plan.tasks.values() if task.service == "steerer")
    for outputs, role in chain.from_iterable(((outputs, role) for role in outputs) for outputs in steered):
        kind, _, name = role.partition("/")
        if kind == TEXTS and is_restricted(outputs[role]):
            same = {key for other, key in outputs.items() if other != role and other.partition("/")[2] == name}
            yield outputs[role], same
