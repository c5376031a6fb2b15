"""`python -m tests.trials.hostile`: the trial from start to end; `make test-hostile` calls it."""

import asyncio
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from rich.console import Console
from tests.trials.hostile.cluster import Target, running, total
from tests.trials.hostile.control import Control, train_scorer
from tests.trials.hostile.generate import Generator, documents_of
from tests.trials.hostile.health import watched
from tests.trials.hostile.report import GROWTH_LIMIT, Report
from tests.trials.hostile.send import Sender, Sent, Settings, send, send_all

from poolbench.errors import PoolbenchError

_CONSOLE = Console(width=150)
#: Filling the caches that grow to a bound, so that memory that grows after it is a leak.
_TEXTS_AT_ONCE = 32
_WORDS = ("report", "rain", "although", "harbour", "sun", "because", "night", "ships", "came", "quiet", "never", "left")
#: Requests of another seed, of every kind: whatever they make a process load once is loaded before the count.
_HOSTILE = 500
_OTHERS = 10**6
_NUM_WORDS = 400
#: A batch that adds less than this share finds the caches full already: 2,000 requests then add less than 2 %.
_FULL = 0.005
_MOST_BATCHES = 8


class Trial:
    """One trial on one cluster."""

    def __init__(self, target: Target, settings: Settings) -> None:
        self.target, self.settings = target, settings
        self.report = Report(settings)
        self.generator = Generator(settings.seed, target.token, documents_of(self._get))
        self._started_s = time.monotonic()

    def run(self) -> int:
        """Send hostile requests beside honest ones; return the exit code."""
        scorer = self.step("a scorer of its own", lambda: train_scorer(self.target.http, self.target.token))
        control = Control(self.target.http, self.target.token, scorer)
        self.step("control answers of the quiet cluster", lambda: asyncio.run(control.record()))
        self.step("filling caches", lambda: asyncio.run(fill(self.target, self.generator)))
        self.step("requests", lambda: self.requests(control))
        self.report.figures["wall, s"] = round(time.monotonic() - self._started_s)
        return self.report.close(_CONSOLE)

    def requests(self, control: Control) -> None:
        """Send hostile requests beside honest ones."""
        before = self.target.processes()
        with watched(self.target.http) as beats:
            sent = asyncio.run(send_all(self.target.http, self.generator, control, self.settings))
        self.report.add_requests(sent)
        self.report.add_health(beats, sent)
        self.report.add_control(control, sent)
        self.report.add_processes(before, self.target.settled(total(before) * (1 + GROWTH_LIMIT)))

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """Do one part of the trial and say when it began; the figures say how long it took."""
        began_s = time.monotonic()
        _CONSOLE.print(f"[{began_s - self._started_s:5.0f} s] {name}", markup=False, highlight=False)
        try:
            return work()
        finally:
            self.report.figures[f"{name}: wall, s"] = round(time.monotonic() - began_s)

    def _get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.target.token}"}
        answer = httpx.get(f"{self.target.http}{path}", headers=headers, timeout=60)
        return answer.json() if answer.is_success else {}


async def fill(target: Target, generator: Generator) -> None:
    """Score texts that share no beginning, and send hostile requests, until neither makes the processes grow."""
    rng = random.Random(0)
    headers = {"Authorization": f"Bearer {target.token}"}

    async def score() -> None:
        texts = [" ".join(rng.choices(_WORDS, k=_NUM_WORDS)) for _ in range(_TEXTS_AT_ONCE)]
        (await client.post("/steerer/perplexity", json={"texts": texts})).raise_for_status()

    async with httpx.AsyncClient(base_url=target.http, headers=headers, timeout=120) as client:
        await _until_full(target, score)
    numbers = itertools.count(_OTHERS)

    async def attack() -> None:
        cases = map(generator.case, itertools.islice(numbers, _HOSTILE))
        await send(sender, generator, cases, Sent())

    async with Sender(target.http) as sender:
        await _until_full(target, attack)


async def _until_full(target: Target, work: Callable[[], Awaitable[None]]) -> None:
    """Repeat the work until it adds less than `_FULL` to the memory of the processes."""
    for _ in range(_MOST_BATCHES):
        before = total(target.processes())
        await work()
        if total(target.processes()) < before * (1 + _FULL):
            return


def main() -> int:
    """Run the trial; return 1 after findings, and 2 if it could not run."""
    try:
        with running() as target:
            return Trial(target, Settings.from_environment()).run()
    except PoolbenchError as error:
        _CONSOLE.print(f"error: {error}", style="red", markup=False)
        return 2


if __name__ == "__main__":
    sys.exit(main())
