"""The scorers of an object store: names, keys, and a cache of the last few."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from poolbench.concepts import CONCEPTS, refuse_restricted
from poolbench.contracts.bounds import KEY_PATTERN
from poolbench.errors import DamagedError, NotFoundError, UnknownNameError, shown
from poolbench.library.scorers import NamedScorer, ScorerRecords, defaults, meant
from poolbench.statuses import Status
from poolbench.steps.scorer import CONFIG, REPORT
from poolbench.storage.artifacts import Artifacts
from poolbench_scorer.classifiers.scorer import Scorer, load_scorer, pick_device

_LOG = logging.getLogger("poolbench.scorer")
#: Beginnings of artifact keys; no concept or base begins so.
_KEYS = ("scorer.", "restricted.")
_KEPT_RECORDS = 1024


class ScorerShelf:
    """Scorers of an object store, with the last few cached for ad-hoc requests."""

    def __init__(self, artifacts: Artifacts, capacity: int = 6) -> None:
        self.artifacts = artifacts
        self.get = lru_cache(maxsize=capacity)(self._load)
        self._read = lru_cache(_KEPT_RECORDS)(lambda info: artifacts.store.get(info.path))

    def _load(self, key: str) -> Scorer:
        names = list(self.artifacts.manifest(key).files)
        return load_scorer(lambda name: self.artifacts.read(key, name), names, pick_device())

    def report(self, key: str) -> dict[str, Any]:
        """Return the report of training or import."""
        return dict(json.loads(self.artifacts.read(key, REPORT)))

    def concept(self, key: str) -> str:
        """Return the concept of a stored scorer, without loading the scorer."""
        return str(json.loads(self.artifacts.read(key, CONFIG))["concept"])

    def records(self) -> ScorerRecords:
        """Return the current records of the store. Only new and changed records are read again."""
        return ScorerRecords(self.artifacts.store, self._read)

    def resolve(self, name: str, records: ScorerRecords) -> str:
        """Return the artifact key of a scorer.

        Args:
            name: One of `NamedScorer.names`, or an artifact key.

        Raises:
            RestrictedError: The scorer is for a sensitive concept.
            NotFoundError: This store has no such scorer, or `name` is not an artifact key.
            UnknownConceptError: No concept has this name. The error lists the nearest valid names.
            UnknownNameError: Scorers of several concepts have this name.
        """
        key = name if name.startswith(_KEYS) else self._meant(name, records).key
        if re.fullmatch(KEY_PATTERN, key, re.ASCII) is None:  # a key becomes a path
            raise NotFoundError(f"{shown(name)} is not an artifact key; GET /scorer/scorers lists the scorers")
        refuse_restricted(f"scorer {name}", [key])
        return key

    def _meant(self, name: str, records: ScorerRecords) -> NamedScorer:
        scorers = self._readable(records)
        matches = [one for one in scorers if name in one.names]
        if not matches:
            concept, sign, _ = name.partition("@")
            if sign or "/" not in name:
                CONCEPTS.get(concept)
            here = ", ".join(one.id for one in scorers) or "none"
            raise NotFoundError(
                f"this store has no scorer {shown(name)}; it has {here}. Train one (POST /scorer/train, or a run), or "
                "import one (POST /scorer/import)"
            )
        if len({one.concept for one in matches}) > 1:
            raise UnknownNameError("scorer", name, [one.id for one in matches])
        return meant(matches)

    def _readable(self, records: ScorerRecords) -> list[NamedScorer]:
        return records.scorers(damaged=partial(_LOG.error, "%s is damaged: train or import that scorer again"))

    def listing(self) -> list[dict[str, Any]]:
        """Return every scorer that requests can name, with its report from training or import.

        If the files of a scorer are missing or damaged, its entry has status `failed` and a reason.
        """
        scorers = self._readable(self.records())
        default = defaults(scorers)
        return [{**self._entry(one), "default": one in default} for one in scorers]

    def _entry(self, pointer: NamedScorer) -> dict[str, Any]:
        made_at = datetime.fromtimestamp(pointer.made_s, UTC).isoformat(timespec="seconds")
        entry = {"id": pointer.id, "concept": pointer.concept, "base": pointer.base, "scorer": pointer.key}
        if not self.artifacts.exists(pointer.key):
            return {**entry, "made_at": made_at, "status": Status.FAILED, "reason": "its files are gone"}
        report_fields = ("auroc", "ece_after", "brier_after", "reason", "note")
        try:
            config = json.loads(self.artifacts.read(pointer.key, CONFIG))
            report = {name: value for name, value in self.report(pointer.key).items() if name in report_fields}
        except DamagedError as error:
            return {**entry, "made_at": made_at, "status": Status.FAILED, "reason": str(error)}
        return {**entry, "made_at": made_at, "status": Status.OK, "kind": config["kind"], **report}


@contextmanager
def generator_kept() -> Iterator[None]:
    """Restore torch's global random generator at the end of a `with` block.

    Loading a model draws from this generator, which would change a training in progress.
    """
    import torch

    with torch.random.fork_rng():
        yield
