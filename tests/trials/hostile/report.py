"""What a trial found: a table for people, JSON for programs, and the findings that make it fail."""

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.trials.hostile.case import Outcome
from tests.trials.hostile.cluster import MIB, Process, total
from tests.trials.hostile.control import Control
from tests.trials.hostile.health import Beat
from tests.trials.hostile.send import Sent, Settings

OUTPUT = Path("bench/out/hostile.json")
#: A machine that others use too may be given longer; the promise is 1 s.
HEALTH_LIMIT_S = float(os.environ.get("HOSTILE_HEALTH_S", "1"))
GROWTH_LIMIT = 0.05
_MOST_SHOWN = 12
_SUSPECTS = 5


@dataclass
class Report:
    """Figures and findings of a trial."""

    settings: Settings
    figures: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def add_requests(self, sent: Sent) -> None:
        """Answers by status, and what was answered wrongly."""
        answers = Counter(_named(each) for each in sent.outcomes)
        self.figures["requests"] = len(sent.outcomes)
        self.figures["answers by status"] = dict(sorted(answers.items()))
        self.figures["slowest request, s"] = round(max((e.ended_s - e.started_s for e in sent.outcomes), default=0), 2)
        for each in sent.outcomes:
            if each.defect:
                again = self.settings.command(str(each.case.number))
                self.findings.append(f"{each.case.shown}\n  {each.defect}\n  again: {again}")

    def add_health(self, beats: list[Beat], sent: Sent) -> None:
        """The slowest answer, and answers that were no 200; requests that were under way then are named."""
        self.figures["health answers"] = len(beats)
        self.figures["slowest health, s"] = round(max((beat.wall_s for beat in beats), default=0), 3)
        for service in sorted({beat.service for beat in beats}):
            own = [beat for beat in beats if beat.service == service]
            if bad := [beat for beat in own if beat.status != 200]:
                suspects = self._suspects(sent, bad[0].started_s, bad[0].started_s + bad[0].wall_s)
                self.findings.append(
                    f"{len(bad)} health answers of the {service} were no 200: {bad[0].status}{suspects}"
                )
            worst = max(own, key=lambda beat: beat.wall_s)
            if worst.wall_s >= HEALTH_LIMIT_S:
                suspects = self._suspects(sent, worst.started_s, worst.started_s + worst.wall_s)
                late = sum(beat.wall_s >= HEALTH_LIMIT_S for beat in own)
                self.findings.append(
                    f"health of the {service} took {worst.wall_s:.2f} s "
                    f"({late} times {HEALTH_LIMIT_S:g} s or more){suspects}"
                )

    def add_control(self, control: Control, sent: Sent) -> None:
        """Control answers that differ from those of the quiet cluster."""
        self.figures["control answers compared"] = control.num_compared
        self.figures["control answers that differ"] = len(control.differences)
        for each in control.differences[:3]:
            suspects = self._suspects(sent, each.started_s - 1, each.ended_s)
            at = next((i for i, (a, b) in enumerate(zip(each.expected, each.received, strict=False)) if a != b), 0)
            self.findings.append(
                f"control {each.question}\n  expected ...{each.expected[max(0, at - 30) : at + 100]}"
                f"\n  received ...{each.received[max(0, at - 30) : at + 100]}{suspects}"
            )

    def add_processes(self, before: dict[int, Process], after: dict[int, Process]) -> None:
        """Processes that ended, and how memory grew."""
        gone = [process for pid, process in before.items() if pid not in after]
        new = [process for pid, process in after.items() if pid not in before]
        self.figures["processes ended, new"] = [len(gone), len(new)]
        if gone:
            self.findings.append(f"processes ended: {', '.join(f'{p.name} ({p.pid})' for p in gone)}")
        growth = total(after) / total(before) - 1
        self.figures["memory, MiB"] = [round(total(before) / MIB), round(total(after) / MIB)]
        self.figures["growth, %"] = round(100 * growth, 1)
        more = {p.name: (p.uss - (before[pid].uss if pid in before else 0)) / MIB for pid, p in after.items()}
        most = sorted(more.items(), key=lambda item: -item[1])[:3]
        shown = ", ".join(f"{name} {size:+.0f} MiB" for name, size in most)
        self.figures["grew most"] = shown
        if growth > GROWTH_LIMIT:
            self.findings.append(f"memory grew by {growth:.1%} (allowed {GROWTH_LIMIT:.0%}): {shown}")

    def close(self, console: Console) -> int:
        """Prints all and writes the JSON; returns the exit code."""
        table = Table("figure", "value", title=f"hostile trial, seed {self.settings.seed}", title_justify="left")
        for name, value in self.figures.items():
            table.add_row(name, json.dumps(value) if not isinstance(value, str) else value)
        console.print(table)
        for text in self.findings[:_MOST_SHOWN]:
            console.print(f"finding: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
        if len(self.findings) > _MOST_SHOWN:
            console.print(f"... and {len(self.findings) - _MOST_SHOWN} more in {OUTPUT}")
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps({"name": "hostile", "figures": self.figures, "findings": self.findings}, indent=2))
        console.print("nobody was harmed" if not self.findings else f"{len(self.findings)} findings")
        return 1 if self.findings else 0

    def _suspects(self, sent: Sent, started_s: float, ended_s: float) -> str:
        """The requests that were under way at a time, and how they are sent again."""
        found = sent.between(started_s, ended_s)
        if not found:
            return ""
        shown = "".join(f"\n  under way: {each.case.shown}" for each in found[:_SUSPECTS])
        numbers = ",".join(str(each.case.number) for each in sorted(found, key=lambda each: each.case.number)[:40])
        return f"{shown}\n  again: {self.settings.command(numbers)}"


def _named(outcome: Outcome) -> str:
    if outcome.status:
        return str(outcome.status)
    return "none, by intention" if outcome.intended else "none"
