"""The third phase: files of a finished run are damaged, and the same command must give the same results.

While the run works it fills every core of a small machine, so health is asked here for its answer and not its speed.
"""

import hashlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.trials.hostile.cluster import Target
from tests.trials.hostile.damage import Damage, damage_files, files_of
from tests.trials.hostile.settings import Settings
from tests.trials.hostile.small_run import Ran, SmallRun

from poolbench.errors import PoolbenchError
from poolbench.storage import Artifacts

_MOST_ROUNDS = 12


@dataclass
class Repaired:
    """What came of all damage."""

    ways: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    num_recomputed: int = 0
    num_named: int = 0
    num_unread: int = 0
    findings: list[str] = field(default_factory=list)
    wall_s: float = 0.0


def damage_and_repair(target: Target, small: SmallRun, before: Ran, settings: Settings) -> Repaired:
    """Damages files and runs the same command, until as many files as asked were damaged."""
    made, started = Repaired(), time.monotonic()
    # The control load asks for this scorer; once its scores are committed, no run needs it again.
    keys = [key for key in small.keys if key != small.scorer]
    left = settings.num_damaged
    while left > 0 and made.rounds < _MOST_ROUNDS and not made.findings:
        rng = random.Random(f"{settings.seed}/damage/{made.rounds}")
        files, attempts = files_of(target.store, keys), _attempts(small)
        sound = {path: _hash(path) for _, path in files}
        damages = damage_files(files, left, rng)
        if not damages:
            break
        changed = {key for key, path in files if _hash(path) != sound[path]}
        left -= len(damages)
        made.rounds += 1
        made.ways.update(damage.way for damage in damages)
        visible = {key for key in changed if small.artifacts.exists(key)}
        after = small.run()
        _judge_run(before, after, made)
        _judge_artifacts(small, damages, visible, attempts, after, made)
    # What nothing needed is not left for a later trial to find; after a finding, nothing can be trusted.
    for key in small.keys if made.findings else _damaged(small.artifacts, small.keys):
        small.artifacts.delete(key)
    made.wall_s = time.monotonic() - started
    return made


def _judge_run(before: Ran, after: Ran, made: Repaired) -> None:
    where = f"round {made.rounds}"
    if after.exit_code or "Traceback" in after.output:
        made.findings.append(f"{where}: the run ended with {after.exit_code}: {after.output[-600:]}")
    if after.digest != before.digest:
        made.findings.append(f"{where}: the digest changed from {before.digest[:16]} to {after.digest[:16]}")


def _judge_artifacts(
    small: SmallRun, damages: list[Damage], visible: set[str], attempts: dict[str, str], after: Ran, made: Repaired
) -> None:
    """Damage is named and made again, or was not read; `visible` is what has a manifest still."""
    now, still = _attempts(small), _damaged(small.artifacts, sorted(visible))
    named = {key for key in visible if key in after.output}
    made.num_recomputed += sum(key in now and now[key] != attempt for key, attempt in attempts.items())
    made.num_named += len(named)
    made.num_unread += len(still)
    if silent := sorted(visible - named - still):
        ways = [damage.shown for damage in damages if damage.key in silent]
        made.findings.append(f"round {made.rounds}: {len(silent)} damaged artifacts were not noticed: {ways[:3]}")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _attempts(small: SmallRun) -> dict[str, str]:
    found = {}
    for key in small.keys:
        try:
            found[key] = small.artifacts.manifest(key).attempt
        except PoolbenchError:
            continue
    return found


def _damaged(artifacts: Artifacts, keys: list[str]) -> set[str]:
    """Committed artifacts that cannot be read."""
    found = set()
    for key in keys:
        if not artifacts.exists(key):
            continue
        try:
            for name in artifacts.manifest(key).files:
                artifacts.read(key, name)
        except PoolbenchError:
            found.add(key)
    return found
