"""What a trial is asked to do, from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How much is sent, and from which seed.

    Attributes:
        seed: Every request is drawn from it and its own number alone.
        num_requests: Hostile requests.
        only: Numbers of the requests to send, to reproduce a finding; empty for all.
    """

    seed: int = 1
    num_requests: int = 2000
    only: tuple[int, ...] = ()

    @classmethod
    def from_environment(cls) -> Settings:
        """Read HOSTILE_SEED, HOSTILE_N and HOSTILE_ONLY (numbers, or ranges such as 40-60)."""
        return cls(
            seed=int(os.environ.get("HOSTILE_SEED", "1")),
            num_requests=int(os.environ.get("HOSTILE_N", "2000")),
            only=_numbers(os.environ.get("HOSTILE_ONLY", "")),
        )

    def command(self, numbers: str) -> str:
        """Return the command that sends these alone again."""
        return f"HOSTILE_SEED={self.seed} HOSTILE_ONLY={numbers} make test-hostile"


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
