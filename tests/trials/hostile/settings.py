"""What a trial is asked to do, from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

PHASES = ("requests", "messages", "damage", "redis", "s3")


@dataclass(frozen=True)
class Settings:
    """How much is sent, and from which seed.

    Attributes:
        seed: Every request, message and damage is drawn from it and its own number alone.
        num_requests: Requests of the first phase; messages and damaged files keep their share of it.
        phases: Which of `PHASES` to run.
        only: Numbers of the requests or messages to send, to reproduce a finding; empty for all.
    """

    seed: int = 1
    num_requests: int = 2000
    phases: tuple[str, ...] = PHASES
    only: tuple[int, ...] = ()

    @property
    def num_messages(self) -> int:
        """Hostile messages, a quarter of the requests."""
        return self.num_requests // 4

    @property
    def num_damaged(self) -> int:
        """Damaged files: 300 for 2,000 requests."""
        return self.num_requests * 3 // 20

    @classmethod
    def from_environment(cls) -> Settings:
        """Reads HOSTILE_SEED, HOSTILE_N, HOSTILE_PHASES and HOSTILE_ONLY (numbers, or ranges such as 40-60)."""
        phases = tuple(filter(None, os.environ.get("HOSTILE_PHASES", "").split(","))) or PHASES
        if wrong := set(phases) - set(PHASES):
            raise SystemExit(f"HOSTILE_PHASES: unknown phase {', '.join(sorted(wrong))}; use {', '.join(PHASES)}")
        return cls(
            seed=int(os.environ.get("HOSTILE_SEED", "1")),
            num_requests=int(os.environ.get("HOSTILE_N", "2000")),
            phases=phases,
            only=_numbers(os.environ.get("HOSTILE_ONLY", "")),
        )

    def command(self, phase: str, numbers: str) -> str:
        """The command that sends these alone again."""
        return f"HOSTILE_PHASES={phase} HOSTILE_SEED={self.seed} HOSTILE_ONLY={numbers} make test-hostile"


def _numbers(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
