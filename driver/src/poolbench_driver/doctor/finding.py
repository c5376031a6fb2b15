"""What a check finds, and the checks before a run starts: nothing is sent to a cluster that is not fit for it."""

import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from poolbench import __version__
from poolbench.contracts.wire import SERVICES
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.machine.sharing import require_shared
from poolbench.queue.broker import Owner, require_owner
from poolbench.settings import ClusterSettings
from poolbench.statuses import ServiceState
from poolbench.steps import steps_version
from poolbench.storage import Artifacts, require_conditional_writes, store_id
from poolbench_driver.cluster.session import Session

#: Clocks may differ by this much before it is worth a word: timestamps of HTTP count seconds, and answers take some.
CLOCK_TOLERANCE_S = 60.0


def check_session(session: Session) -> list[str]:
    """Check the cluster before a run starts. Return one note for each clock that is wrong, which harms nothing.

    Raise ConfigError, StoreError, BrokerError or EndpointError if a part of the cluster cannot be used.
    """
    require_conditional_writes(session.artifacts.store)
    session.queue.ping()
    require_owner(session.queue.broker, owner_of(session.settings, session.artifacts))
    if not session.settings.http_address:
        raise ConfigError("the cluster's HTTP address is unknown; set POOLBENCH_HTTP")
    with ThreadPoolExecutor(len(SERVICES)) as pool:
        healths = dict(zip(SERVICES, pool.map(session.services.health, SERVICES), strict=True))
    for name, health in healths.items():
        require_shared(session.settings, dict(health.get("folders", {})))
        if mismatch := other_version(name, health):
            raise ConfigError(mismatch)
    return _clocks(session, healths)


def owner_of(settings: ClusterSettings, artifacts: Artifacts) -> Owner:
    """Return the record that names this cluster, by its object store, as the owner of its broker."""
    return Owner(store_id=store_id(artifacts.store), store_uri=settings.store_uri)


def other_version(service: str, health: Mapping[str, Any]) -> str:
    """Describe how the version of a service differs from this driver, and the remedy. Return "" if both are equal.

    Also return "" for a service that is asleep. Versions must be equal, because keys of artifacts depend on them.
    """
    if health.get("status") == ServiceState.ASLEEP:
        return ""
    replica = health.get("replica", {})
    theirs, steps = replica.get("version", "unknown"), replica.get("steps", "unknown")
    if (theirs, steps) == (__version__, steps_version()):
        return ""
    return (
        f"the {service} has version {theirs} with steps {steps}, this driver {__version__} with {steps_version()}: "
        "install the same version everywhere and restart the cluster"
    )


def described_clock(difference_s: float) -> str:
    """Describe the error of a clock that is `difference_s` ahead of the clock of the object store.

    Return "" if the difference is at most `CLOCK_TOLERANCE_S`.
    """
    if abs(difference_s) <= CLOCK_TOLERANCE_S:
        return ""
    where = "ahead of" if difference_s > 0 else "behind"
    return f"{abs(difference_s):.0f} s {where} that of the object store; nothing is lost, but set it"


def _clocks(session: Session, healths: Mapping[str, Mapping[str, Any]]) -> list[str]:
    now_s = session.artifacts.store.now_s()
    times = {"this machine": time.time()}
    times |= {f"the {name}": health["replica"]["time_s"] for name, health in healths.items() if "replica" in health}
    description_by_clock = {whose: described_clock(time_s - now_s) for whose, time_s in times.items()}
    return [
        f"note: the clock of {whose} is {description}"
        for whose, description in description_by_clock.items()
        if description
    ]


class Level(StrEnum):
    """Severity of a finding. Only failures change the exit code."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warn"
    FAILURE = "FAIL"


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, its severity, and a message with the fault and the remedy."""

    check: str
    level: Level = Level.OK
    message: str = ""

    @property
    def line(self) -> str:
        """Return the finding as one line of text for a person."""
        return f"{self.level:<5} {self.check}{': ' if self.message else ''}{self.message}"


def checked(check: str, look: Callable[[], object]) -> Finding:
    """Call `look`, and return a failure with its message if it raises PoolbenchError or OSError."""
    try:
        look()
    except (PoolbenchError, OSError) as error:
        return Finding(check, Level.FAILURE, str(error))
    return Finding(check)


_GIB = 2**30
#: Below this much free space, runs fail soon, or may fail.
_LEAST_GIB, _LITTLE_GIB = 1, 5


def free_space(where: str, free_bytes: int) -> Finding:
    """Return a failure if less than 1 GiB is free, and a warning if less than 5 GiB are free."""
    free_gib = free_bytes / _GIB
    level = Level.FAILURE if free_gib < _LEAST_GIB else Level.WARNING if free_gib < _LITTLE_GIB else Level.OK
    message = f"{free_gib:.1f} GiB are free"
    advice = f"; at least {_LITTLE_GIB} are advised: `poolbench-driver gc --delete` frees some"
    return Finding(f"disk of {where}", level, message + advice * (level is not Level.OK))


def free_bytes_at(path: Path) -> int:
    """Return the free space, in bytes, of the file system of a path. The path need not exist."""
    return shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free


def clock(whose: str, difference_s: float) -> Finding:
    """Return a warning if a clock differs by more than `CLOCK_TOLERANCE_S` from the clock of the object store."""
    message = described_clock(difference_s)
    return Finding(f"clock of {whose}", Level.WARNING if message else Level.OK, message)
