"""The names by which ad-hoc requests find the scorers of an object store, and what their gates found.

A record in `scorers/<concept>/` names each scorer that was made. A name that fits several means the one that a request
made last (training or import), and without one the one that a run made first: no run changes what a name means.
Each gate that judges a scorer leaves a record in `scorers/<concept>/gates/`.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from poolbench.contracts.keys import digest
from poolbench.contracts.wire import scorers_path
from poolbench.errors import IntegrityError
from poolbench.storage.base import ObjectInfo, ObjectStore

#: Folder of a concept's records with the verdicts of gates.
_GATES = "gates/"


@dataclass(frozen=True)
class NamedScorer:
    """A scorer that requests can name."""

    concept: str
    base: str
    key: str  # of the artifact
    requested: bool  # whether a request made it, not a run
    made_s: float  # time in seconds since the epoch

    @property
    def id(self) -> str:
        """Return the name that fits no other scorer."""
        return f"{self.concept}@{self.base}:{digest(self.key, 6)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names that requests may use for the scorer, besides its key.

        Only the source of an import can be a name of scorers of several concepts.
        """
        source = (self.base,) if "/" in self.base else ()
        return (self.concept, f"{self.concept}@{self.base}", self.id, *source)


def name_scorer(store: ObjectStore, key: str, concept: str, base: str, *, requested: bool) -> None:
    """Record a scorer under its names.

    Without `requested` (a scorer made by a run), an existing record is left unchanged.
    """
    body = {"concept": concept, "base": base, "scorer": key, "requested": requested}
    slug = re.sub(r"[^\w.-]+", "-", base).strip("-.") or "base"
    path = f"{scorers_path(concept)}{slug}-{digest(key, 6)}.json"
    store.put(path, json.dumps(body).encode(), if_absent=not requested)


def record_gate(store: ObjectStore, concept: str, key: str, gate: str, *, passed: bool, reason: str) -> None:
    """Record the verdict of the gate artifact `gate` on the scorer `key`."""
    body = {"gate": gate, "passed": passed, "reason": reason}
    store.put(f"{_gates_path(concept, key)}{digest(gate, 6)}.json", json.dumps(body).encode())


class ScorerRecords:
    """The records of scorers and gates that an object store holds now, from a single listing."""

    def __init__(self, store: ObjectStore, read: Callable[[ObjectInfo], bytes] | None = None) -> None:
        """List the records; `read` returns the bytes of one, by default from the store."""
        self._store, self._read = store, read or (lambda info: store.get(info.path))
        self._infos = list(store.list(scorers_path("")))

    def scorers(self, damaged: Callable[[str], None] | None = None) -> list[NamedScorer]:
        """Return all scorers by id.

        Args:
            damaged: Called with the path of a record that cannot be read, which is left out.

        Raises:
            IntegrityError: A record cannot be read, and there is no `damaged`.
        """
        scorers = []
        for info in self._infos:
            if f"/{_GATES}" in info.path:
                continue
            try:
                body, (_, concept, name) = json.loads(self._read(info)), info.path.split("/")
                base = str(body.get("base", name.removesuffix(".json")))
                requested = bool(body.get("requested"))
                scorers.append(NamedScorer(concept, base, str(body["scorer"]), requested, info.modified_s))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                if damaged is None:
                    raise IntegrityError(
                        f"{info.path} in {self._store.uri} is damaged; train or import that scorer again (a run, "
                        "`poolbench-driver import scorers`), or remove it"
                    ) from None
                damaged(info.path)
        return sorted(scorers, key=lambda one: one.id)

    def gate(self, concept: str, key: str) -> tuple[bool, str | None] | None:
        """Return whether a scorer passed all of its gates, and the reasons of failed gates.

        Return None if no gate judged it.

        Raises:
            IntegrityError: A record cannot be read.
        """
        reasons: list[str] = []
        infos = [info for info in self._infos if info.path.startswith(_gates_path(concept, key))]
        for info in infos:
            try:
                body = json.loads(self._read(info))
                reasons += [] if body["passed"] else [str(body["reason"])]
            except (ValueError, LookupError, TypeError, RecursionError):
                raise IntegrityError(f"{info.path} in {self._store.uri} is damaged; remove it") from None
        if not infos:
            return None
        among = f"{len(reasons)} of {len(infos)} gates failed: " if len(infos) > 1 else ""
        return not reasons, f"{among}{'; '.join(dict.fromkeys(reasons))}" if reasons else None


def _gates_path(concept: str, key: str) -> str:
    return f"{scorers_path(concept)}{_GATES}{digest(key)}/"


def meant(found: Iterable[NamedScorer]) -> NamedScorer:
    """Return the one of several that a common name means."""
    return min(found, key=lambda one: (not one.requested, -one.made_s if one.requested else one.made_s, one.key))


def defaults(known: Sequence[NamedScorer]) -> set[NamedScorer]:
    """Return the scorers that the names of their concepts mean."""
    return {meant(one for one in known if one.concept == name) for name in {one.concept for one in known}}
