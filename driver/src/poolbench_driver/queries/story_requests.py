"""Pairs of stories that a language model writes: requests to an OpenAI-compatible endpoint, and the file of the set."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from poolbench.errors import CorpusError
from poolbench_corpora.io import write_at_once
from poolbench_corpora.stories.prompts import prompts_of, prompts_version, stories_of
from poolbench_driver.queries.endpoint import EndpointModel, in_parallel


class Prompt(NamedTuple):
    """A request for one pair of stories."""

    subject: str
    name: str  # name of the prompt
    text: str


class AskedPair(NamedTuple):
    """The result of a prompt: a description of each answer, and the pair of stories if an answer was usable."""

    prompt: Prompt
    answers: list[str]
    row: dict[str, str] | None


def ask_for_pair(writer: EndpointModel, prompt: Prompt) -> AskedPair:
    """Ask for a pair of stories. Raise EndpointError if no prompt would work."""
    reply = writer.ask(prompt.text, stories_of)
    if reply.value is None:
        return AskedPair(prompt, reply.answers, None)
    high, low = reply.value
    row = {"subject": prompt.subject, "story1": high, "story2": low, "model": reply.model, "prompt": prompt.name}
    return AskedPair(prompt, reply.answers, row)


@dataclass
class StoryFile:
    """The file of a set that is being written, with the outcomes of all answers beside the file."""

    path: Path
    counts: Counter[str] = field(default_factory=Counter)  # answers by what they were, of all commands
    failed: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # answers to prompts without stories

    def __post_init__(self) -> None:
        """Read the stories that earlier commands wrote. Raise CorpusError if the file is not a set of stories."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.written: set[tuple[str, str]] = set()
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.is_file() else []
        whole = b"".join(lines).endswith(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                self.written.add((row["subject"], row.get("prompt", "")))
            except (ValueError, LookupError, TypeError, AttributeError):
                if number == len(lines) and not whole:  # an earlier command was killed while it wrote
                    lines.pop()
                    break
                raise CorpusError(
                    f"{self.path}, line {number}: no row of a set of stories; give another --name"
                ) from None
        if lines and not whole:
            write_at_once(self.path, "".join(f"{line.decode().rstrip()}\n" for line in lines))
        if self._beside.is_file():
            try:
                earlier = yaml.safe_load(self._beside.read_text("utf-8"))
                self.counts.update(earlier["answers"])
                self.failed = {(row["subject"], row["prompt"]): row["answers"] for row in earlier["failed"]}
            except (yaml.YAMLError, ValueError, LookupError, TypeError):
                raise CorpusError(f"{self._beside} is damaged: remove it, and its counts begin again") from None

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".made.yaml")

    def prompts(self, subjects: Sequence[str]) -> list[Prompt]:
        """Return the prompts for pairs of stories that the file has not."""
        prompts = (Prompt(subject, *item) for subject in subjects for item in prompts_of(subject).items())
        return [prompt for prompt in prompts if prompt[:2] not in self.written]

    def add(self, outcome: AskedPair) -> None:
        """Count the outcomes of a prompt's answers, and append its row if it has one."""
        at = outcome.prompt[:2]
        self.counts.update(outcome.answers)
        self.failed.pop(at, None)
        if outcome.row is None:
            self.failed[at] = outcome.answers
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(outcome.row, ensure_ascii=False)}\n")
        self.written.add(at)

    def write_counts(self, writer: EndpointModel) -> None:
        """Write the number of answers by outcome to a file beside the stories."""
        failed = [
            {"subject": subject, "prompt": name, "answers": kinds} for (subject, name), kinds in self.failed.items()
        ]
        facts = {"model": writer.model, "endpoint": writer.endpoint, "prompts_version": prompts_version()}
        facts |= {"pairs": len(self.written), "answers": dict(sorted(self.counts.items())), "failed": failed}
        write_at_once(self._beside, yaml.safe_dump(facts, sort_keys=False, allow_unicode=True))


def ask_for_stories(
    file: StoryFile, writer: EndpointModel, prompts: Sequence[Prompt], parallel: int, progress: Callable[[], None]
) -> None:
    """Ask for the stories of each prompt, and write each pair when it arrives.

    An interruption, or an endpoint that cannot be used, leaves a file that the next command continues.
    """
    try:
        for outcome in in_parallel(prompts, partial(ask_for_pair, writer), parallel):
            file.add(outcome)
            progress()
    finally:
        writer.close()
        file.write_counts(writer)
