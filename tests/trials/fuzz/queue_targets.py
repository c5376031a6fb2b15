"""Messages: the decoders of both brokers, and the dead letters that come of them."""

import random
from functools import cache
from pathlib import Path

from tests.poison import POISON, QUEUE, echo
from tests.trials.fuzz.mutate import mutated, mutated_json
from tests.trials.fuzz.worker import Target

from poolbench.errors import InputError
from poolbench.queue import Broker
from poolbench.queue.deliveries import Deliveries
from poolbench.queue.letters import DeadLetter, Stored, read_letter, task_of
from poolbench.queue.messages import Message, Misunderstood, understand


@cache
def _valid() -> bytes:
    return Message(task=echo(1).model_dump(mode="json")).encode()


def _make_message(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        return mutated(rng.choice(list(POISON.values()))[0], rng)
    return mutated_json(_valid(), rng)


@cache
def _deliveries(root: Path) -> Deliveries:
    """The deliveries of a consumer on a folder broker."""
    return Deliveries(Broker(f"filesystem://{root}"), QUEUE, sleep=lambda _: None)


def _read_from_folder(data: bytes, folder: Path) -> None:
    """Deliver a message as the folder broker does, and show the dead letter if it becomes one."""
    root = folder.parent / "broker"
    deliveries, spool = _deliveries(root), Broker(f"filesystem://{root}").spool()
    spool.put(QUEUE, data)
    delivered = deliveries.next(0.0)
    if delivered is not None:
        _check_message(delivered)
        return
    for raw in spool.waiting(QUEUE):
        paused = understand(raw)
        assert isinstance(paused, Message) and paused.pause_s
    for letter in spool.dead_letters(QUEUE, None):
        _show(read_letter(letter, "prober"))
    assert spool.clear(QUEUE) == 1


def _read_from_redis(data: bytes, folder: Path) -> None:
    """Decode an entry of a list, and a stored dead letter."""
    found = understand(data)
    if isinstance(found, Message):
        _check_message(found)
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


def _check_message(message: Message) -> None:
    """What a worker receives is understood again."""
    assert understand(message.encode()) == message


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
