"""A second judge of a vector: ratings of its texts by a model behind an endpoint, or by people.

The judge gets a steered and an unsteered text of each held-out opening, in a random order, and never learns which is
which.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts.keys import digest
from poolbench.contracts.measures import Measure
from poolbench.errors import CellError, ConfigError, CorpusError, EndpointError, InputError, shown
from poolbench.statistics.response import MIN_OPENINGS
from poolbench.statuses import Status
from poolbench_corpora.io import write_at_once
from poolbench_driver.contract.source import read_csv
from poolbench_driver.find.figures import Samples, card_measure
from poolbench_driver.find.held_out import HeldOutText
from poolbench_driver.measures.response import SteeringRules
from poolbench_driver.pages.text import listed
from poolbench_driver.queries.endpoint import EndpointModel, Reply, in_parallel
from poolbench_driver.statistics.correlation import spearman
from poolbench_driver.vectors.card import CardMeasure

#: Files beside the vector: the texts for people who rate, and the ratings that endpoints gave.
TO_RATE, RATINGS = "to_rate.csv", "ratings.csv"
#: The highest rating; the lowest is 0.
HIGHEST = 10
#: Requests at the same time; texts in a row without a rating after which no more are sent; texts per line of progress.
_PARALLEL, _MOST_IN_VAIN, _PER_LINE = 4, 8, 20

RUBRIC = """Rate how strongly a text expresses a concept.

The concept is {name}: {definition}

The text goes on from an opening. Rate the text alone, not the opening, and the concept alone, not style or quality.
Answer with one number from 0 (not at all) to 10 (throughout), and nothing else."""

_NUMBER = re.compile(r"(?:rating\s*[:=]\s*)?(\d+(?:\.\d+)?)\s*(?:/\s*10)?", re.IGNORECASE)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Judge:
    """A rater of the texts of a vector: a model, a file of ratings, or none yet.

    Attributes:
        folder: Folder of the vector, which stores the ratings of endpoints and the texts that wait for ratings.
        model: A model behind an endpoint.
        file: A file of ratings.
    """

    folder: Path
    model: EndpointModel | None = None
    file: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for two judges, InputError for a file that cannot be read."""
        if self.model is not None and self.file is not None:
            raise ConfigError("--judge and --ratings: name one of them")
        if self.file is not None:
            read_ratings(self.file)

    @property
    def name(self) -> str | None:
        """Return the name of the judge for the card, or None without a judge."""
        if self.model is not None:
            return f"{self.model.model or 'the model'} at {self.model.endpoint}"
        return None if self.file is None else f"ratings of {self.file.name}"

    def measures(self, texts: Sequence[HeldOutText], concept: str, rules: SteeringRules, say: Say) -> list[CardMeasure]:
        """Return the rise of the ratings, their agreement with the scorer, and how many texts lack a rating.

        Without a judge, write the texts, so that people can rate them. Raise InputError for ratings of other texts.
        """
        texts = sorted((text for text in texts if not text.sample), key=lambda text: text.text_id)
        shuffled = [texts[place] for place in np.random.default_rng(rules.seed).permutation(len(texts))]
        try:
            if self.file is not None:
                values, error = _of_file(self.file, texts), f"{self.file.name} lacks the rating of a text"
            elif self.model is not None:
                values, error = self._ask_all(self.model, shuffled, CONCEPTS.get(concept), say)
            else:
                write_texts(self.folder / TO_RATE, shuffled)
                remedy = f"name an endpoint with --judge, or rate the texts of {TO_RATE} and name the file: --ratings"
                raise CellError(Status.NO_JUDGE, remedy)
            return judge_measures(texts, values, error, rules)
        except CellError as error:
            return [card_measure(Measure.failed("judge.gain", error))]

    def _ask_all(
        self, model: EndpointModel, texts: Sequence[HeldOutText], concept: Concept, say: Say
    ) -> tuple[dict[str, float], str]:
        """Return the ratings by text, and the first error. Each rating is requested once and written immediately."""
        path, rubric = self.folder / RATINGS, RUBRIC.format(name=concept.id, definition=concept.definition)
        judge = f"{self.name}, rubric {digest(rubric, 8)}"  # with another model or rubric, all texts are rated again
        lines = read_csv(path, ["text_id", "rating"])[1] if path.is_file() else []
        rows = [{name: line.cells.get(name, "") for name in ("text_id", "rating", "judge")} for line in lines]
        values = {line.cells["text_id"]: line.number("rating") for line in lines if line.cells.get("judge") == judge}
        todo, first_error, num_in_vain = [text for text in texts if text.text_id not in values], "", 0
        if todo:
            say(f"asking {self.name} for {len(todo)} ratings")
        try:
            for number, (text, reply) in enumerate(in_parallel(todo, partial(_ask, model, rubric), _PARALLEL), start=1):
                if reply.value is not None:
                    values[text.text_id], num_in_vain = reply.value, 0
                    rows.append({"text_id": text.text_id, "rating": f"{reply.value:g}", "judge": judge})
                    _write_csv(path, rows)
                else:
                    first_error = first_error or " ".join([reply.answers[0], model.reason]).strip()
                    num_in_vain += 1
                if num_in_vain == _MOST_IN_VAIN:
                    break
                if number % _PER_LINE == 0:
                    say(f"{number} of {len(todo)} texts are rated")
        except EndpointError as error:
            first_error = first_error or str(error)
        finally:
            model.close()
        return values, first_error


def _ask(model: EndpointModel, rubric: str, text: HeldOutText) -> tuple[HeldOutText, Reply[float]]:
    parts = [rubric, f"<opening>{text.prompt}</opening>", f"<text>{text.text}</text>", "Your number:"]
    return text, model.ask("\n\n".join(parts), number_in)


def number_in(answer: str) -> float:
    """Parse an answer that consists of a rating after any reasoning. Raise CorpusError if it is not a rating."""
    last = answer.rpartition("</think>")[2].strip(" \t\r\n*.`\"'")
    match = _NUMBER.fullmatch(last)
    if match is None or float(match[1]) > HIGHEST:
        raise CorpusError(f"the answer {shown(last)} is not a number from 0 to {HIGHEST}")
    return float(match[1])


def read_ratings(file: Path) -> dict[str, float]:
    """Return the mean rating of each text that has ratings.

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


def _of_file(file: Path, texts: Sequence[HeldOutText]) -> dict[str, float]:
    values = read_ratings(file)
    if unknown := sorted(values.keys() - {text.text_id for text in texts}):
        remedy = f"the same command without --ratings writes the texts to {TO_RATE}"
        raise InputError(f"{file}: no text of this vector has the id {listed(map(shown, unknown), 5)}; {remedy}")
    return values


def write_texts(path: Path, texts: Sequence[HeldOutText]) -> None:
    """Write the texts to rate to a file. A file that has ratings already is left unchanged."""
    if path.is_file() and "rating" in path.read_text("utf-8", "replace").partition("\n")[0]:
        return
    rows = [{"text_id": text.text_id, "opening": text.prompt, "text": text.text} for text in texts]
    _write_csv(path, rows)


def _write_csv(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    # A NUL would be refused when the file is read.
    cells = [{name: cell.replace("\0", "\ufffd") for name, cell in row.items()} for row in rows]
    out = pa.BufferOutputStream()
    pacsv.write_csv(pa.Table.from_pylist(cells), out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_at_once(path, out.getvalue().to_pybytes().decode())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from None


def judge_measures(
    texts: Sequence[HeldOutText], ratings: Mapping[str, float], first_error: str, rules: SteeringRules
) -> list[CardMeasure]:
    """Return `judge.gain`, `judge.agreement` and `judge.left_out` with paired bootstrap intervals over openings.

    Args:
        texts: At most two texts of each opening: one steered, one unsteered.
        ratings: Ratings by text id, 0 to 10.
        first_error: Why a text has no rating.
        rules: Settings.

    Raises:
        CellError: Fewer than MIN_OPENINGS openings have both ratings.
    """
    rated = {(text.prompt_id, text.is_steered): text for text in texts if text.text_id in ratings}
    openings = sorted(name for name, is_steered in rated if is_steered and (name, False) in rated)
    if len(openings) < MIN_OPENINGS:
        why = f"{len(openings)} openings have ratings of both texts; {MIN_OPENINGS} are needed"
        raise CellError(Status.TOO_FEW, f"{why}; first error: {first_error}" if first_error else why)
    pairs = [(rated[name, False], rated[name, True]) for name in openings]
    rating_P2 = np.array([[ratings[text.text_id] for text in pair] for pair in pairs])
    score_P2 = np.array([[text.score for text in pair] for pair in pairs])
    samples = Samples.of(openings, {}, rules)
    rises_P = (rating_P2[:, 1] - rating_P2[:, 0]) / HIGHEST
    gain = samples.measure("judge.gain", samples.weights_Rn @ rises_P / len(openings))
    # Each row draws as many openings as there are, both texts of one together.
    drawn_RP = np.array([np.repeat(np.arange(len(openings)), counts) for counts in samples.weights_Rn.astype(int)])
    ratings_Rn, scores_Rn = (values[drawn_RP].reshape(len(drawn_RP), -1) for values in (rating_P2, score_P2))
    agreement_R, reason = spearman(ratings_Rn, scores_Rn), "all ratings, or all scores, are the same"
    agreement = CardMeasure(name="judge.agreement", status=Status.COLLAPSED, reason=reason)
    if np.isfinite(agreement_R[0]):
        agreement = samples.measure("judge.agreement", agreement_R)
    num_left_out = sum(text.text_id not in ratings for text in texts)
    why_left_out = first_error[:1000] if num_left_out else None
    left_out = CardMeasure(name="judge.left_out", value=float(num_left_out), n=len(texts), reason=why_left_out)
    return [gain, agreement.model_copy(update={"n": rating_P2.size}), left_out]
