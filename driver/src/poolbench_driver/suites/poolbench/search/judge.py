"""A second judge of a vector: ratings of its texts by a model behind an endpoint, or by people, in place of a scorer.

The judge gets the texts of the held-out openings, steered and not, in a random order, and never learns which is which.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts.keys import digest
from poolbench.errors import CellError, CorpusError, EndpointError, InputError, shown
from poolbench.statistics.correlation import spearman
from poolbench.statistics.response import MIN_OPENINGS
from poolbench.statuses import Status
from poolbench_corpora.io import write_at_once
from poolbench_driver.adhoc.endpoint import EndpointModel, Reply, in_parallel
from poolbench_driver.contract.source import read_csv
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.search.figures import Samples
from poolbench_driver.suites.poolbench.search.held_out import HeldOutText, pairs_of
from poolbench_driver.vectors.card import CardMeasure

#: Files beside the vector: the texts for people who rate, and the ratings that an endpoint gave.
TO_RATE, RATINGS = "to_rate.csv", "ratings.csv"
#: The highest rating; the lowest is 0.
HIGHEST = 10
#: Requests at the same time; texts in a row without a rating after which the others are not sent.
PARALLEL, MOST_IN_VAIN = 4, 8
#: Ratings after which progress is reported.
_REPORTED = 20

RUBRIC = """Rate how strongly a text expresses a concept.

The concept is {name}: {definition}

The text goes on from an opening. Rate the text alone, not the opening, and the concept alone, not style or quality.

<opening>{prompt}</opening>
<text>{text}</text>

Answer with one number from 0 (not at all) to 10 (throughout), and nothing else."""

_NUMBER = re.compile(r"(?:rating\s*[:=]\s*)?(\d+(?:\.\d+)?)\s*(?:/\s*10)?", re.IGNORECASE)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ratings:
    """Ratings by text id, 0 to 10, and the first reason why a text has none."""

    values: Mapping[str, float]
    error: str = ""


class Judge(Protocol):
    """Rates texts."""

    @property
    def name(self) -> str | None:
        """Return who rates, as the card says it; None for nothing."""

    def rate(self, texts: Sequence[HeldOutText], concept: Concept, folder: Path | None, say: Say) -> Ratings:
        """Return ratings of texts; `folder` keeps what the judge reads or writes, None for nothing.

        Raise CellError if there is no judge, InputError for ratings that are not of these texts.
        """


@dataclass(frozen=True)
class NoJudge:
    """No judge: the texts are written, so that people can rate them."""

    name: None = None

    def rate(self, texts: Sequence[HeldOutText], concept: Concept, folder: Path | None, say: Say) -> Ratings:
        """Write the texts. Raise CellError `no_judge`."""
        place = f" (a column `rating` beside the texts of {TO_RATE})"
        if folder is not None:
            write_texts(folder / TO_RATE, texts)
        raise CellError(Status.NO_JUDGE, f"name an endpoint with --judge, or a file with --ratings{place}")


@dataclass(frozen=True)
class FileJudge:
    """Ratings of a file."""

    file: Path
    values: Mapping[str, float]

    @classmethod
    def read(cls, file: Path) -> FileJudge:
        """Return the judge of a file with columns `text_id` and `rating`. Raise InputError for a wrong one."""
        return cls(file, read_ratings(file))

    @property
    def name(self) -> str:
        """Return the name of the file."""
        return f"ratings of {self.file.name}"

    def rate(self, texts: Sequence[HeldOutText], concept: Concept, folder: Path | None, say: Say) -> Ratings:
        """Return the ratings. Raise InputError if one is of another text."""
        others = sorted(self.values.keys() - {text.text_id for text in texts})
        if others:
            names = ", ".join(map(shown, others[:5])) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
            remedy = f"the texts to rate are in {TO_RATE} of a search without --ratings"
            raise InputError(f"{self.file}: no text of this vector has the id {names}; {remedy}")
        return Ratings(self.values, f"{self.file.name} lacks the rating of a text")


@dataclass(frozen=True)
class EndpointJudge:
    """A model behind an endpoint."""

    model: EndpointModel

    @classmethod
    def of(cls, endpoint: str, model: str, key: str | None) -> EndpointJudge:
        """Return the judge of an endpoint. Raise ConfigError for an address or a key that cannot be used."""
        return cls(EndpointModel(endpoint, model, key, max_tokens=512, temperature=0.0, tries=2, timeout_s=60.0))

    @property
    def name(self) -> str:
        """Return model and endpoint."""
        return f"{self.model.model or 'the model'} at {self.model.endpoint}"

    def rate(self, texts: Sequence[HeldOutText], concept: Concept, folder: Path | None, say: Say) -> Ratings:
        """Return the ratings of earlier calls, and ask for the others; each is written when it is there."""
        identity = f"{self.name}, rubric {digest([RUBRIC, concept.id, concept.definition], 8)}"
        file = RatingsFile(None if folder is None else folder / RATINGS, identity)
        todo = [text for text in texts if text.text_id not in file.values]
        error, num_in_vain = "", 0
        if todo:
            say(f"asking {self.name} for {len(todo)} ratings")
        try:
            for number, (text, reply) in enumerate(in_parallel(todo, partial(self._ask, concept), PARALLEL), start=1):
                if reply.value is not None:
                    file.add(text.text_id, reply.value)
                    num_in_vain = 0
                else:
                    num_in_vain += 1
                    error = error or ", ".join([*reply.answers[:1], *filter(None, [self.model.reason])])
                if num_in_vain == MOST_IN_VAIN:
                    break
                if number % _REPORTED == 0:
                    say(f"{number} of {len(todo)} texts are rated")
        except EndpointError as refusal:
            error = error or str(refusal)
        finally:
            self.model.close()
        return Ratings(
            {text.text_id: file.values[text.text_id] for text in texts if text.text_id in file.values}, error
        )

    def _ask(self, concept: Concept, text: HeldOutText) -> tuple[HeldOutText, Reply[float]]:
        prompt = RUBRIC.format(name=concept.id, definition=concept.definition, prompt=text.prompt, text=text.text)
        return text, self.model.ask(prompt, number_in)


def number_in(answer: str) -> float:
    """Return the rating that an answer consists of, after any reasoning. Raise CorpusError if it is none."""
    last = answer.rpartition("</think>")[2]
    match = _NUMBER.fullmatch(last.strip(" \t\r\n*.`\"'"))
    if match is None or float(match[1]) > HIGHEST:
        raise CorpusError(f"the answer {shown(last.strip())} is not a number from 0 to {HIGHEST}")
    return float(match[1])


@dataclass
class RatingsFile:
    """The file of ratings that endpoints gave, and those of one judge: the same model with the same rubric."""

    path: Path | None
    judge: str
    values: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what earlier calls wrote. Raise InputError for a file of something else."""
        self._others: list[dict[str, object]] = []
        if self.path is None or not self.path.is_file():
            return
        for line in read_csv(self.path, ["text_id", "rating"])[1]:
            if line.cells.get("judge") == self.judge:
                self.values[line.cells["text_id"]] = line.number("rating")
            else:
                judge = line.cells.get("judge", "")
                self._others.append({"text_id": line.cells["text_id"], "rating": line.number("rating"), "judge": judge})

    def add(self, text_id: str, rating: float) -> None:
        """Add a rating, and write the file."""
        self.values[text_id] = rating
        if self.path is not None:
            rows = [{"text_id": name, "rating": value, "judge": self.judge} for name, value in self.values.items()]
            _write_csv(self.path, pa.Table.from_pylist([*self._others, *rows]))


def read_ratings(file: Path) -> dict[str, float]:
    """Return the mean of the ratings of each text that has one.

    Raise InputError, with file and line, for a rating that is not from 0 to 10, and for a file without any.
    """
    by_text = defaultdict[str, list[float]](list)
    for line in read_csv(file, ["text_id", "rating"])[1]:
        rating = line.number("rating")
        if rating < 0 or rating > HIGHEST:
            raise InputError(f"{line.where}: the rating is {rating:g}; it must be from 0 to {HIGHEST}")
        if not np.isnan(rating):
            by_text[line.cells["text_id"]].append(rating)
    if not by_text:
        raise InputError(f"{file}: no text has a rating; write numbers from 0 to {HIGHEST} in the column `rating`")
    return {name: float(np.mean(ratings)) for name, ratings in by_text.items()}


def write_texts(path: Path, texts: Sequence[HeldOutText]) -> None:
    """Write texts for people who rate; a file that has ratings is left as it is."""
    if path.is_file() and "rating" in path.read_text("utf-8", "replace").partition("\n")[0]:
        return
    columns = {"text_id": "text_id", "opening": "prompt", "text": "text"}
    # NUL is refused where tables are read.
    rows = [{name: getattr(text, field).replace("\0", "\ufffd") for name, field in columns.items()} for text in texts]
    _write_csv(path, pa.Table.from_pylist(rows))


def _write_csv(path: Path, table: pa.Table) -> None:
    out = pa.BufferOutputStream()
    pacsv.write_csv(table, out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_at_once(path, out.getvalue().to_pybytes().decode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def judge_measures(
    texts: Sequence[HeldOutText], concept: str, judge: Judge, rules: SteeringRules, folder: Path | None, say: Say
) -> list[CardMeasure]:
    """Return what a judge says of a vector: the rise of its ratings, and how far it agrees with the scorer.

    Args:
        texts: A steered and an unsteered text of each opening.
        concept: Id of the concept.
        folder: Folder of the vector.

    Raises:
        InputError: The ratings are of other texts.
    """
    order = np.random.default_rng(rules.seed).permutation(len(texts))
    try:
        ratings = judge.rate([texts[place] for place in order], CONCEPTS.get(concept), folder, say)
        return list(_figures(texts, ratings, rules))
    except CellError as error:
        return [CardMeasure(name="judge.gain", status=error.status, reason=str(error)[:1000])]


def _figures(texts: Sequence[HeldOutText], ratings: Ratings, rules: SteeringRules) -> list[CardMeasure]:
    values, pairs = ratings.values, pairs_of(texts)
    rated = [pair for _, pair in sorted(pairs.items()) if all(text.text_id in values for text in pair)]
    num_left_out = sum(text.text_id not in values for text in texts)
    if len(rated) < MIN_OPENINGS:
        why = f"{len(rated)} of {len(pairs)} openings have both ratings; {MIN_OPENINGS} are needed"
        raise CellError(Status.TOO_FEW, f"{why}{f'; first error: {ratings.error}' if ratings.error else ''}")
    rating_P2, score_P2 = (
        np.array([[read(text) for text in pair] for pair in rated])
        for read in (lambda text: values[text.text_id], lambda text: text.score)
    )
    samples = Samples.of([pair[0].opening for pair in rated], {}, rules)
    rises_P = (rating_P2[:, 1] - rating_P2[:, 0]) / HIGHEST
    measures = [samples.measure("judge.gain", samples.weights_Rn @ rises_P / len(rated))]
    # Both texts of an opening are drawn together.
    num_draws, counts_RP = len(samples.weights_Rn), samples.weights_Rn.astype(int)
    openings_RP = np.repeat(np.tile(np.arange(len(rated)), num_draws), counts_RP.ravel()).reshape(num_draws, -1)
    drawn = (values_P2[openings_RP].reshape(num_draws, -1) for values_P2 in (rating_P2, score_P2))
    agreement_R, name, num = spearman(*drawn), "judge.agreement", rating_P2.size
    if np.isfinite(agreement_R[0]):
        measures.append(samples.measure(name, agreement_R).model_copy(update={"n": num}))
    else:
        reason = "all ratings, or all scores, are the same"
        measures.append(CardMeasure(name=name, status=Status.COLLAPSED, reason=reason, n=num))
    first = ratings.error[:1000] if num_left_out else None
    return [*measures, CardMeasure(name="judge.left_out", value=float(num_left_out), n=len(texts), reason=first)]
