"""Readers with the defects that the fuzz must find, for its own test."""

import ctypes
import json
import logging
import os
import pickle
import random
import time
from pathlib import Path

from tests.trials.fuzz.worker import Target
from tests.trials.hostile.values import PICKLE


def _nothing(rng: random.Random) -> bytes:
    return b"x"


def _crash(data: bytes, folder: Path) -> None:
    ctypes.string_at(0)


def _compute(data: bytes, folder: Path) -> None:
    while True:
        pass


def _write_elsewhere(data: bytes, folder: Path) -> None:
    (folder / "../../outside/written").write_bytes(data)


def _read_elsewhere(data: bytes, folder: Path) -> None:
    logging.getLogger("poolbench").info("%s", (folder / "../../outside/canary").read_text())


def _unpickle(data: bytes, folder: Path) -> None:
    pickle.loads(PICKLE)


def _leak(data: bytes, folder: Path) -> None:
    logging.getLogger("poolbench").warning("the token is %s", os.environ["POOLBENCH_TOKEN"])


def _raise(data: bytes, folder: Path) -> None:
    json.loads("[" * 100_000)


def _allocate(data: bytes, folder: Path) -> None:
    bytearray(1 << 36)


def _be_good(data: bytes, folder: Path) -> None:
    (folder / "own").write_bytes(data)
    time.sleep(0)


def _target(name: str, read: object) -> Target:
    # The first cases of a worker are read unwatched, to import what is imported late.
    def watched(data: bytes, folder: Path) -> None:
        if folder.name != "warm":
            read(data, folder)  # type: ignore[operator]

    return Target(name, _nothing, watched)


TARGETS = (
    _target("crash", _crash),
    _target("compute", _compute),
    _target("write elsewhere", _write_elsewhere),
    _target("read elsewhere", _read_elsewhere),
    _target("unpickle", _unpickle),
    _target("leak", _leak),
    _target("raise", _raise),
    _target("allocate", _allocate),
    _target("good", _be_good),
)
