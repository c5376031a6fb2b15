"""Deletion of steered texts of sensitive concepts, once this run has committed everything that is measured on them.

Erased texts keep their key and their receipts, so they are not generated again while their scores exist. If a task
still has to read them (say for a neighbour added later), they are deleted completely, generated, scored and erased.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Set

from poolbench.contracts.keys import is_restricted
from poolbench.errors import DamagedError
from poolbench.steps.steerer import CONTINUATIONS, FLUENCY, TEXTS
from poolbench.storage import Artifacts, Manifest, ObjectInfo
from poolbench.storage.erasure import erase_texts, receipts_path
from poolbench.storage.manifest import FOLDERS, manifest_path
from poolbench_driver.stages.stage import Plan


class Erasure:
    """The restricted texts of a plan, and the artifacts that must be committed before they are deleted."""

    def __init__(self, plan: Plan, artifacts: Artifacts) -> None:
        self.artifacts = artifacts
        self.erased: set[str] = set()  # keys of texts that have nothing left to delete
        self.companions = dict(_restricted_texts(plan))
        self.readers: dict[str, set[str]] = defaultdict(set)
        for task in plan.tasks.values():
            for key in set(task.inputs.values()) & self.companions.keys():
                self.readers[key].update(task.outputs.values())

    def needed_again(self, committed: Set[str], among: Iterable[str] | None = None) -> set[str]:
        """Return erased texts that a task must still read, and likelihoods measured on them, as keys out of `among`."""
        there = self.companions.keys() & (committed if among is None else committed & set(among))
        unread = [key for key in there if not self.readers[key] <= committed]
        erased = [key for key in unread if (manifest := self._readable(key)) and manifest.erased]
        return set(erased).union(*(self.companions[key] for key in erased))

    def invalidate(self, keys: Iterable[str]) -> None:
        """Delete artifacts completely, so that they are made again.

        Texts come last: after an interruption they are still marked as erased, so the next run starts here again.
        """
        for key in sorted(keys, key=lambda key: key in self.companions):
            self.artifacts.delete(key)
            self.erased.discard(key)

    def look(self) -> None:
        """Find, with one listing of the store, the texts that were erased completely before."""
        whole = ((key, {manifest_path(key), receipts_path(key)}) for key in self.companions)
        files = self._files()
        self.erased |= {key for key, left in whole if {info.path for info in files.get(key, ())} == left}

    def torn(self, is_old: Callable[[ObjectInfo], bool]) -> list[str]:
        """Return old files that killed attempts left beside committed texts."""
        found = []
        for key, infos in self._files().items():
            if manifest_path(key) in {info.path for info in infos}:
                if (manifest := self._readable(key)) is None:
                    continue
                named = {manifest_path(key), *(entry.path for entry in manifest.files.values())}
                found += [info.path for info in infos if info.path not in named and is_old(info)]
        return found

    def _readable(self, key: str) -> Manifest | None:
        """Return the manifest of a committed artifact; None if it is damaged, which its readers report."""
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
        """Return keys of texts that still exist although all artifacts computed from them are committed."""
        there = (self.companions.keys() & committed) - self.erased
        return sorted(key for key in there if self.readers[key] <= committed)

    def erase(self, keys: Iterable[str]) -> None:
        """Delete the texts of these keys."""
        for key in keys:
            erase_texts(self.artifacts, key)
            self.erased.add(key)


def scored_texts(committed: Set[str], idle: Iterable[Erasure], busy: Set[str]) -> set[str]:
    """Return keys of texts to delete in upkeep: an idle run has all their scores, and no key of a busy run is one."""
    due: set[str] = set()
    for erasure in idle:
        erasure.look()
        due.update(erasure.due(committed))
    return due - busy


def _restricted_texts(plan: Plan) -> Iterable[tuple[str, set[str]]]:
    """Yield the key of each restricted text, and the keys of the likelihoods measured on it."""
    for outputs in (task.outputs for task in plan.tasks.values() if task.service == "steerer"):
        texts = [(CONTINUATIONS(), ""), *((role, FLUENCY(at.name)) for role, at in TEXTS.among(outputs))]
        for role, fluency in texts:
            if is_restricted(outputs.get(role, "")):
                yield outputs[role], {outputs[fluency]} if fluency in outputs else set()
