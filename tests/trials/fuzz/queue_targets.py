"""Messages: the decoders of both brokers, and the dead letters that come of them."""

import json
import random
from functools import cache
from pathlib import Path
from queue import Empty
from typing import Any

from tests.poison import POISON, QUEUE, echo
from tests.trials.fuzz.mutate import mutated, mutated_json
from tests.trials.fuzz.worker import Target

from poolbench.errors import InputError
from poolbench.queue import Broker
from poolbench.queue.envelope import Message, Misunderstood, understand
from poolbench.queue.letters import DeadLetter, Stored, read_letter, task_of


@cache
def _valid() -> bytes:
    return json.dumps(Message(echo(1).model_dump(mode="json")).envelope(QUEUE)).encode()


def _make_message(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return mutated(rng.choice(list(POISON.values()))[0], rng)
    return mutated_json(_valid(), rng)


@cache
def _channel(root: Path) -> Any:
    """The channel of a real consumer on a folder broker."""
    return Broker(f"filesystem://{root}").celery_app().connection().default_channel


def _read_from_folder(data: bytes, folder: Path) -> None:
    """Deliver a message as the folder broker does, and show the dead letter if it becomes one."""
    root = folder.parent / "broker"
    channel, spool = _channel(root), Broker(f"filesystem://{root}").spool()
    (root / "messages" / f"0.{QUEUE}.msg").write_bytes(data)
    try:
        delivered = channel._get(QUEUE)
    except Empty:
        (found,) = spool.dead_letters(QUEUE, None)
        _show(read_letter(found, "prober"))
        assert spool.remove_dead(QUEUE, found)
    else:
        _check_envelope(delivered)
    assert not spool.count(QUEUE)


def _read_from_redis(data: bytes, folder: Path) -> None:
    """Decode an entry of a list, a record of a message in work, and a stored dead letter."""
    found = understand(data)
    if isinstance(found, Message):
        _check_envelope(found.envelope(QUEUE))
    else:
        _show(read_letter(Stored(DeadLetter.of_message("prober", found).encode()), "prober"))
    _show(read_letter(Stored(data), "prober"))


def _make_letter(rng: random.Random) -> bytes:
    task = echo(2).model_dump(mode="json")
    letters = (
        DeadLetter.of_task("prober", task, "it failed"),
        DeadLetter.of_message("prober", Misunderstood("x", b"y")),
    )
    raw = rng.choice(letters).encode()
    return mutated(raw, rng) if rng.random() < 0.3 else mutated_json(raw, rng)


def _read_letter(data: bytes, folder: Path) -> None:
    _show(read_letter(Stored(data), "prober"))


def _check_envelope(envelope: dict[str, Any]) -> None:
    """What Celery receives is ours alone, and is understood again."""
    assert envelope["headers"]["task"] == "run_task" and envelope["content-type"] == "application/json"
    assert isinstance(understand(json.dumps(envelope).encode()), Message)


def _show(letter: DeadLetter) -> None:
    """What the commands do with a dead letter."""
    assert letter.line.isprintable() and letter.kind.isprintable() and letter.when
    assert len(letter.line) < 5000
    _ = letter.content
    try:
        task_of(letter)
    except InputError as error:
        assert str(error)


TARGETS = (
    Target("message from a folder", _make_message, _read_from_folder),
    Target("message from Redis", _make_message, _read_from_redis),
    Target("dead letter", _make_letter, _read_letter),
)
