"""`python -m tests.trials.hostile`: the trial from start to end; `make test-hostile` calls it."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from tests.trials.hostile import redis_phase, s3_phase
from tests.trials.hostile.cluster import Process, Target, running, total
from tests.trials.hostile.control import Control
from tests.trials.hostile.damage_phase import damage_and_repair
from tests.trials.hostile.generate import Generator, documents_of
from tests.trials.hostile.health import watched
from tests.trials.hostile.messages_phase import deliver
from tests.trials.hostile.report import GROWTH_LIMIT, Report
from tests.trials.hostile.requests_phase import Sent, send_all
from tests.trials.hostile.settings import Settings
from tests.trials.hostile.small_run import Ran, SmallRun
from tests.trials.hostile.warm import fill
from tests.servers import ceph
from tests.servers import redis as redis_server

from poolbench.errors import PoolbenchError
from poolbench.queue import Broker

_CONSOLE = Console(width=150)


class Trial:
    """One trial on one cluster."""

    def __init__(self, target: Target, settings: Settings, folder: Path) -> None:
        self.target, self.settings = target, settings
        self.report = Report(settings)
        self.small = SmallRun(folder)
        self.generator = Generator(settings.seed, target.token, documents_of(self._get))
        self._started_s = time.monotonic()

    def run(self) -> int:
        """All phases that are asked for; returns the exit code."""
        ran = self.step("a small run, for its scorer and its files", self.small.run)
        if ran.exit_code:
            raise SystemExit(f"the small run failed before anything was damaged: {ran.output[-2000:]}")
        control = Control(self.target.http, self.target.token, self.small.scorer)
        self.step("control answers of the quiet cluster", lambda: asyncio.run(control.record()))
        self.step("filling caches", lambda: asyncio.run(fill(self.target, self.generator)))
        asked = {name: work for name, work in self._phases(control, ran).items() if name in self.settings.phases}
        for name in ("requests", "messages"):
            if name in asked:
                self.step(name, asked.pop(name))
        # While files are damaged no answer is timed, and the others have servers of their own: all at once.
        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(self.step, name, work) for name, work in asked.items()]:
                done.result()
        self.report.figures["wall, s"] = round(time.monotonic() - self._started_s)
        return self.report.close(_CONSOLE)

    def _phases(self, control: Control, ran: Ran) -> dict[str, Callable[[], None]]:
        return {
            "requests": lambda: self.requests(control),
            "messages": lambda: self.messages(control),
            "damage": lambda: self.damage(control, ran),
            "redis": self.redis,
            "s3": self.s3,
        }

    def requests(self, control: Control) -> None:
        """Hostile requests beside honest ones."""
        before = self.target.processes()
        with watched(self.target.http) as pulse:
            sent = asyncio.run(send_all(self.target.http, self.generator, control, self.settings))
        self.report.add_requests(sent)
        self.report.add_health("requests", pulse, sent)
        self.report.add_control("requests", control, sent)
        self.report.add_processes("requests", before, self._settled(before), grows=False)

    def messages(self, control: Control) -> None:
        """Hostile messages among proper ones."""
        before = self.target.processes()
        with watched(self.target.http) as pulse:
            made = deliver(Broker(self.target.record.broker), self.small.artifacts, self.settings)
        asyncio.run(control.compare_once())
        self.report.figures["messages sent"] = dict(made.sent)
        self.report.figures["dead letters"] = made.letters_after - made.letters_before
        self.report.figures["proper tasks among them"] = made.num_signs
        self.report.findings += [
            f"messages: {each}\n  again: {self.settings.command('messages', '0-499')}" for each in made.findings
        ]
        self.report.add_health("messages", pulse, Sent())
        self.report.add_control("messages", control, Sent())
        self.report.add_processes("messages", before, self._settled(before), grows=False)

    def damage(self, control: Control, ran: Ran) -> None:
        """Damaged files, and the same command again."""
        before = self.target.processes()
        with watched(self.target.http) as pulse:
            made = damage_and_repair(self.target, self.small, ran, self.settings)
        asyncio.run(control.compare_once())
        self.report.figures["damaged files"] = dict(sorted(made.ways.items()))
        self.report.figures["runs after damage"] = made.rounds
        self.report.figures["artifacts made again, named, never read"] = [
            made.num_recomputed,
            made.num_named,
            made.num_unread,
        ]
        self.report.findings += [f"damage: {each}" for each in made.findings]
        self.report.add_health("damage", pulse, Sent(), timed=False)
        self.report.add_control("damage", control, Sent())
        self.report.add_processes("damage", before, self.target.processes(), grows=True)

    def redis(self) -> None:
        """Strangers at a Redis server of its own, and hostile keys and messages in it."""
        if redis_server.available():
            with tempfile.TemporaryDirectory(prefix="poolbench-hostile-") as folder:
                self.report.findings += [f"redis: {each}" for each in redis_phase.attack(Path(folder), self.settings)]
        self.report.figures["redis tried"] = redis_server.available()

    def s3(self) -> None:
        """Strangers, and each role of the policies, at an S3 service of its own."""
        if not ceph.missing():
            with tempfile.TemporaryDirectory(prefix="poolbench-hostile-") as folder:
                self.report.findings += [f"s3: {each}" for each in s3_phase.attack(Path(folder))]
        self.report.figures["s3 tried"] = not ceph.missing()

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Does one part of the trial and says when it began; the figures say how long it took."""
        began_s = time.monotonic()
        _CONSOLE.print(f"[{began_s - self._started_s:5.0f} s] {name}", markup=False, highlight=False)
        try:
            return work()
        finally:
            self.report.figures[f"{name}: wall, s"] = round(time.monotonic() - began_s)

    def _settled(self, before: dict[int, Process]) -> dict[int, Process]:
        return self.target.settled(total(before) * (1 + GROWTH_LIMIT))

    def _get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.target.token}"}
        answer = httpx.get(f"{self.target.http}{path}", headers=headers, timeout=60)
        return answer.json() if answer.is_success else {}


def main() -> int:
    """Runs the trial; 1 after findings, 2 where it could not be held."""
    try:
        with running() as target, tempfile.TemporaryDirectory(prefix="poolbench-hostile-") as folder:
            return Trial(target, Settings.from_environment(), Path(folder)).run()
    except PoolbenchError as error:
        _CONSOLE.print(f"error: {error}", style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
