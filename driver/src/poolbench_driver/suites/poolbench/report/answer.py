"""The answer of a run in sentences: which strategy is best for probing and for steering, and how sure that is."""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean
from typing import Any

import numpy as np

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_corpora.audit import Verdict
from poolbench_driver.contract.page import Problem
from poolbench_driver.pages.boards.ranking import RankBoard
from poolbench_driver.pages.boards.ranks import rank_text, tells_apart
from poolbench_driver.pages.plain import null_lines
from poolbench_driver.pages.text import listed
from poolbench_driver.suites.poolbench.d1 import CEILING
from poolbench_driver.suites.poolbench.metrics import BOARD
from poolbench_driver.suites.poolbench.report.checks import NOT_AUDITED

#: The two questions of a run: what a probe separates, and what steering adds to a text.
SEPARATION, GAIN = "d1.auroc", "d2.best_gain"
QUESTIONS = {SEPARATION: "probing", GAIN: "steering"}
_TEST, _NAMED = "Nemenyi's test, 5 %", 3
_VERBS = {"steering": "steer", "probing": "separate"}
_NUMBERS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
#: A mean score of unsteered texts above which steering has little left to raise.
_HIGH = 0.5
#: Figures whose nulls are named at the end of a run.
_MAIN = (SEPARATION, GAIN, "d3.robust_ld", "d3.robust_lc")


@dataclass(frozen=True)
class Best:
    """The strategy with the best mean rank for one purpose, and the strategies that are equal to it or tied with it."""

    purpose: str
    strategy: str
    equal: tuple[str, ...]  # strategies at the top, itself included: nothing tells them apart, and they share a mean
    tied: tuple[str, ...]  # strategies that Nemenyi's test cannot tell from it, best first
    num_others: int  # strategies that it was compared with
    unsure: str  # why nothing was tested; empty where the test was made
    limit: str  # that there are too few concepts to tell any two strategies apart; empty if there are enough
    lead: str  # the sentence with its mean rank and mean value

    @property
    def _rest(self) -> tuple[tuple[str, ...], int]:
        """Return the tied strategies that are not equal to the best, and the number of strategies below the top."""
        return tuple(name for name in self.tied if name not in self.equal), self.num_others + 1 - len(self.equal)

    def sentence(self) -> str:
        """Return the answer in sentences, with mean rank, mean value and the outcome of the test."""
        tied, num_others = self._rest
        if self.limit or not num_others:
            return self.lead
        if self.unsure:
            return f"{self.lead} How sure that is cannot be said: {self.unsure}."
        if not tied:
            return f"{self.lead} All others are worse beyond chance ({_TEST})."
        it, is_ = ("them", "they are") if len(self.equal) > 1 else ("it", "it is")
        if len(tied) == num_others:
            return f"{self.lead} The data cannot tell {it} from any other ({_TEST})."
        return f"{self.lead} The data cannot tell {it} from {listed(tied)}; {is_} better than the others ({_TEST})."

    def short(self) -> str:
        """Return the answer and its certainty in one sentence, without numbers."""
        verb, (tied, num_others) = _VERBS[self.purpose], self._rest
        if len(self.equal) > 1:
            first = f"To {verb}, {_spelled(len(self.equal))} strategies are equal at the top"
        else:
            first = f"To {verb}, {self.strategy} comes first"
        if self.limit or not num_others:
            return f"{first}."
        if self.unsure:
            return f"{first}; how sure that is cannot be said."
        if len(self.equal) > 1:
            if not tied:
                return f"{first}."
            others = "any other" if len(tied) == num_others else f"{_spelled(len(tied))} others"
            return f"{first}, and the data cannot tell them from {others}."
        if not tied:
            return f"To {verb}, pool with {self.strategy}: it beats all others."
        others = f"{'any' if len(tied) == num_others else 'one'} of {_spelled(len(tied))} others"
        return f"To {verb}, {self.strategy} or {others if len(tied) > 1 else tied[0]}: the data cannot tell them apart."


def best_of(boards: Mapping[str, RankBoard], measured: Container[str]) -> dict[str, Best | None]:
    """Return the best strategy for each purpose whose metric a run measured.

    If fewer than two strategies have a value, the entry is None. Strategies within Nemenyi's critical difference of the
    best strategy are tied with the best.
    """
    return {
        purpose: None if (board := boards.get(metric)) is None else _best(purpose, board)
        for metric, purpose in QUESTIONS.items()
        if metric in measured
    }


def answers(found: Mapping[str, Best | None]) -> Iterator[str]:
    """Yield the answer for each purpose whose metric a run measured."""
    for purpose, best in found.items():
        yield f"For {purpose}, {best.sentence() if best is not None else 'no two strategies have a value.'}"


def headline(found: Mapping[str, Best | None]) -> str:
    """Return the answers for all purposes in one line. Steering comes first, because most readers look for it."""
    answers = [best for purpose in _VERBS if (best := found.get(purpose)) is not None]
    limits = filter(None, dict.fromkeys(best.limit for best in answers))
    return " ".join([*(best.short() for best in answers), *limits]) or "No two strategies have a value to compare."


def _best(purpose: str, board: RankBoard) -> Best:
    best, measure, summary = board.entrants[0], board.measures[0], board.summary
    num_concepts, concept = len(board.blocks), board.blocks[0]
    unsure = summary["reason"] if summary["critical_difference"] is None else ""
    limit = ""
    if not tells_apart(board):
        few = "One concept is" if num_concepts == 1 else f"{_spelled(num_concepts).capitalize()} concepts are"
        limit = f"{few} too few to tell strategies apart."
    # The best one may be in several groups: one that lacks concepts stands below it, whatever its mean rank.
    groups = [] if unsure or limit else [group for group in summary["tie_groups"] if best in group]
    tied = tuple(name for name in board.entrants if name != best and any(name in group for group in groups))
    means = dict(zip(board.entrants, board.values_NK.mean(axis=0).tolist(), strict=True))
    equal = equal_to(best, {name: means[name] for name in (board.entrants if unsure or limit else (best, *tied))})
    values = [value for value in board.values_NK[:, 0] if isfinite(value)]
    if len(equal) > 1:
        figure = f"{board.metric} of {means[best]:.3f} on"
        figure = f"a {figure} {concept}" if num_concepts == 1 else f"a mean {figure} {num_concepts} concepts"
        lead = f"{_spelled(len(equal))} strategies are equal at the top: {listed(equal)}, with {figure}."
    elif num_concepts == 1:
        count = np.isfinite(board.values_NK).sum()
        lead = f"{best} has the best {board.metric} of {count} on {concept}: {fmean(values):.3f}."
    else:
        rank = rank_text(measure.value, (measure.ci_low, measure.ci_high))
        figure = f" and a mean {board.metric} of {fmean(values):.3f}" if values else ""
        lead = f"{best} has the best mean rank: {rank} of {len(board.entrants)} over {num_concepts} concepts{figure}."
    return Best(purpose, best, equal, tied, len(board.entrants) - 1, unsure, limit, lead)


def problems(audit: Sequence[Row], rows: Sequence[Row], curves: Sequence[Row] = ()) -> Iterator[Problem]:
    """Yield the problems of a run: corpora, failed scorers, saturated D1, high unsteered scores, and other nulls."""
    for line in audit:
        if line["verdict"] == NOT_AUDITED:
            yield Problem(f"{line['concept']}: its passages were not audited", "audit")
        elif line["verdict"] != Verdict.PASS:
            yield Problem(f"{line['concept']}: the verdict on its passages is {line['verdict']}", "audit")
    verdicts = [row for row in rows if row["metric"] == "scorer.gate" and '"verdict"' in row["params"]]
    failed = {row["scorer"] for row in verdicts if row["value"] != 1}
    measured = {row["concept"] for row in rows if row["metric"] == SEPARATION}
    for name in sorted(failed):
        what = "D2 and D3 are" if name in measured else "D3 against it is"
        yield Problem(f"{name}: its scorer failed the gate, so that {what} null", "scorers")
    for name in dict.fromkeys(row["concept"] for row in rows if row["metric"] == "d1.saturation" and row["reason"]):
        yield Problem(f"{name}: most strategies reach a D1 of {CEILING}, so that their order says little", "checks")
    unsteered = {row["concept"]: row["score"] for row in curves if row["strength"] == 0}
    for name, score in unsteered.items():
        if score > _HIGH:
            text = f"{name}: unsteered texts have a score of {score:.2f} already, so that D2 and D3 say little"
            yield Problem(text, "curves")
    others = [row for row in rows if row["status"] != Status.SCORER_INVALID]  # scorers have lines of their own
    yield from map(Problem, null_lines(others, BOARD, _MAIN))


def equal_to(best: str, means: Mapping[str, float]) -> tuple[str, ...]:
    """Return the strategies whose mean equals the mean of the best to three decimals, the best included.

    If the mean of the best is not finite, return the best alone.
    """
    if not isfinite(means[best]):
        return (best,)
    return tuple(name for name, mean in means.items() if f"{mean:.3f}" == f"{means[best]:.3f}")


def leaders(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each concept, the names of the strategies with the highest mean D1 over layers, and this mean.

    A concept in which no strategy has D1 at every layer is left out.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["metric"] == SEPARATION and row["strategy"]:
            values[row["concept"]][row["strategy"]].append(-inf if row["value"] is None else row["value"])
    by_concept = {}
    for concept, cells in values.items():
        means = {name: fmean(layer_values) for name, layer_values in cells.items()}
        best = max(means, key=means.__getitem__)
        if isfinite(means[best]):
            by_concept[concept] = {"strategy": some(equal_to(best, means), "strategies"), "value": means[best]}
    return by_concept


def some(names: Sequence[str], kind: str) -> str:
    """Return the names with commas between them. If there are more than three, return their number and `kind`."""
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} {kind}"


def _spelled(number: int) -> str:
    return _NUMBERS[number] if number < len(_NUMBERS) else str(number)
