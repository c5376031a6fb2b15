"""Strangers at a Redis broker, and someone with its password who fills it with what is no task."""

import os
import subprocess
import sys
from pathlib import Path

import redis
from tests.trials.hostile.messages import message
from tests.trials.hostile.settings import Settings
from tests.poison import QUEUE, echo
from tests.servers import redis as redis_server
from tests.waiting import wait_until

from poolbench.contracts.wire import SERVICES
from poolbench.queue import Broker, TaskQueue
from poolbench.storage import Artifacts, open_store

REPOSITORY = Path(__file__).resolve().parents[2]
NUM_MESSAGES = 100
#: What a stranger would begin with: read, write, run code, learn settings, take the data away, end the server.
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("PING",), ("KEYS", "*"), ("LPUSH", QUEUE, "x"), ("EVAL", "return 1", "0"), ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "dir", "/tmp"), ("REPLICAOF", "127.0.0.1", "9"), ("FLUSHALL",), ("DEBUG", "SLEEP", "1"),
    ("SHUTDOWN", "NOSAVE"), ("MONITOR",), ("SUBSCRIBE", "x"), ("HELLO", "3"), ("ACL", "LIST"),
)  # fmt: skip


def attack(folder: Path, settings: Settings) -> list[str]:
    """Return findings about a Redis server and a consumer of their own."""
    with redis_server.serve(folder) as url:
        return [*strangers(url), *holders(url, folder, settings)]


def strangers(url: str) -> list[str]:
    """Return what the server does for clients without the password, and with wrong ones."""
    ways = {"no password": "", "a wrong password": ":wrong@", "an unknown user": f"nobody:{redis_server.PASSWORD}@"}
    findings = []
    for name, given in ways.items():
        client = redis.Redis.from_url(url.replace(f":{redis_server.PASSWORD}@", given), socket_timeout=10)
        for command in _COMMANDS:
            try:
                answer = client.execute_command(*command)
            except redis.RedisError:
                continue
            findings.append(f"{name}: {' '.join(command)} was answered with {answer!r}")
    return findings


def holders(url: str, folder: Path, settings: Settings) -> list[str]:
    """Return what becomes of a consumer whose broker holds hostile messages."""
    client = redis.Redis.from_url(url)
    numbers = range(SERVICES.index("prober"), NUM_MESSAGES * len(SERVICES), len(SERVICES))
    log, good = folder / "consumer.log", echo(1)
    artifacts, queue = Artifacts(open_store(str(folder / "store"))), TaskQueue(Broker(url))
    environment = os.environ | {"POOLBENCH_BROKER": url, "POOLBENCH_STORE": str(folder / "store")}
    with log.open("wb") as file:
        command = [sys.executable, "-m", "tests.servers.consumer"]
        consumer = subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=file, stderr=file)
    try:
        for number in numbers:
            client.lpush(QUEUE, message(settings.seed, number).raw)
        queue.send(good)
        wait_until(lambda: artifacts.exists(good.outputs["out"]) or consumer.poll() is not None)
    except AssertionError as error:
        return [f"the consumer did not do a proper task behind the hostile ones: {error}"]
    finally:
        ended = consumer.poll()
        consumer.kill()
        consumer.wait()
    findings = [] if ended is None else [f"the consumer ended with {ended}: {log.read_text()[-500:]}"]
    letters = "".join(letter.line for letter in queue.dead_letters("prober"))
    for place, text in (("the log", log.read_text()), ("a dead letter", letters)):
        findings += [f"{place} holds the password"] if redis_server.PASSWORD in text else []
    return findings
