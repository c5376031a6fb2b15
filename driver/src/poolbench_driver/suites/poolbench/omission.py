"""What a run has no scores of: whole cells, passages, and openings."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Sized
from itertools import product
from typing import NamedTuple

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.wire import NULLS, UNSTEERED
from poolbench.statistics.response import split_openings
from poolbench.texts import load_openings
from poolbench_driver.config import ConceptsConfig
from poolbench_driver.contract.verification import MOST_PROBLEMS, Check, State
from poolbench_driver.measures.response import rules_of
from poolbench_driver.stages.scope import wanted_scorers

#: The prober makes a cell null where a larger share of the passages has no vector (`MIN_USABLE`).
MOST_LEFT_OUT = 0.1
_SPLITS = {"d1.auroc": "train", "d1.auroc_test": "test"}


class Count(NamedTuple):
    """The number of a cell's items with scores, and the number that other cells have or the settings ask for."""

    cell: str
    scored: int
    whole: int
    is_blank: bool  # whether nothing of the cell has a score, as where its vectors have collapsed


def check_coverage(counts: Sequence[Count]) -> Check:
    """Return the check `coverage`. The check fails if a cell lacks more scores than the pipeline accepts.

    A score that was never computed looks like a score that was removed. Therefore the check does not pass if any score
    is missing, even if the rows of the cell report the missing score.
    """
    blank = [count for count in counts if count.is_blank]
    lacking = [count for count in counts if not count.is_blank and count.scored != count.whole]
    problems = [
        f"{count.cell}: {count.scored} of {count.whole} have scores"
        for count in lacking
        if not (1 - MOST_LEFT_OUT) * count.whole <= count.scored <= count.whole
    ]
    notes = [f"{count.cell}: {count.whole - count.scored} of {count.whole} have no score" for count in lacking]
    notes += [f"{count.cell}: none has a score" for count in blank]
    if problems or not notes:
        return Check.of("coverage", problems, f"all items of {len(counts)} cells have scores")
    note = f"{len(notes)} of {len(counts)} cells lack scores, and only a rerun shows why: "
    more = "; and more" if len(notes) > MOST_PROBLEMS else ""
    return Check("coverage", State.UNCHECKED, note + "; ".join(notes[:MOST_PROBLEMS]) + more)


def passages_of_cells(
    rows: Sequence[Row],
    scored: Mapping[tuple[str, str, str, int], tuple[Sized, Sized]],
    passages: Mapping[tuple[str, str], Sized],
) -> Iterator[Count]:
    """Count the scored passages of each strategy at each layer, on each split that the concept is measured on."""
    cells = {(row["concept"], row["strategy"], row["layer"]) for row in rows if row["metric"] == "d1.auroc"}
    splits = {(row["concept"], _SPLITS[row["metric"]]) for row in rows if row["metric"] in _SPLITS} | passages.keys()
    for concept, strategy, layer in sorted(cells):
        for split in ("train", "test"):
            if (concept, split) in splits:
                of_cell, _ = scored.get((concept, split, strategy, layer), ((), ()))
                cell = f"{split} passages of {concept}, {strategy}, layer {layer}"
                yield Count(cell, len(of_cell), len(passages.get((concept, split), ())), not of_cell)


def openings_of_cells(
    config: ConceptsConfig, scorers: Collection[str], texts: Mapping[tuple[str | None, str], Sequence[Row]]
) -> Iterator[Count]:
    """Count the complete openings of each entrant, of the null directions together, and of the unsteered texts.

    An opening is complete if, at each strength that is read on this opening, its texts have all scores and likelihoods.

    Args:
        scorers: The concepts that have a scorer with a gate. Scores by any other scorer are ignored.
        texts: Rows of `text_scores` by concept and name.
    """
    steering, budget = config.steering, config.budget
    yield _openings(config, (None, UNSTEERED), texts, [0.0], scorers)
    entrants = [steering.entrant(*pair) for pair in product(config.strategies or (), steering.directions)]
    for concept in config.concepts:
        read = [name for name in wanted_scorers(config, CONCEPTS.get(concept)) if name in scorers]
        for entrant in entrants:
            yield _openings(config, (concept, entrant), texts, budget.strengths, read)
        if budget.num_nulls:
            yield _openings(config, (concept, NULLS), texts, budget.null_strengths, read, budget.num_nulls)


def _openings(
    config: ConceptsConfig,
    at: tuple[str | None, str],
    texts: Mapping[tuple[str | None, str], Sequence[Row]],
    strengths: Sequence[float],
    scorers: Collection[str],
    num_directions: int = 1,
) -> Count:
    budget, num_samples, is_lazy = config.budget, config.steering.num_samples, rules_of(config).is_lazy
    openings = load_openings(budget.opening_set, budget.num_openings)["prompt_id"].to_pylist()
    second = set(split_openings(openings, config.seed)[1])
    all_strengths = {round(strength, 9) for strength in strengths if strength or at[1] == UNSTEERED}
    of_nulls = all_strengths & {0.0, *(round(strength, 9) for strength in budget.null_strengths)}
    num_complete, texts_by_direction = 0, _count_texts(texts.get(at, ()), scorers)
    for num_texts in texts_by_direction.values():
        # Where reading is lazy, the second half has the strengths of the null directions, and the one that was chosen.
        of_second = of_nulls | {strength for opening, strength, _ in num_texts if opening in second}
        for opening in openings:
            read = of_second if is_lazy and opening in second else all_strengths
            counts = {num_texts[opening, strength, scorer] for strength, scorer in product(read, scorers)}
            # Texts of others may be of any number of samples.
            num_complete += min(counts) > 0 if config.steered_texts else counts == {num_samples}
    name = f"openings of {', '.join(filter(None, at))}"
    return Count(name, num_complete, num_directions * len(openings), not texts_by_direction)


def _count_texts(rows: Sequence[Row], scorers: Collection[str]) -> Mapping[int, Counter[tuple[str, float, str]]]:
    """Count, for each direction, the texts of an opening, strength and scorer that have a score and a likelihood."""
    counts = defaultdict[int, Counter[tuple[str, float, str]]](Counter)
    for row in rows:
        has_likelihood = row["mean_nll"] is not None or not row["num_tokens"]  # an empty text needs none
        if row["scorer"] in scorers and row["score"] is not None and has_likelihood:
            counts[row["direction"]][row["prompt_id"], round(row["strength"] or 0.0, 9), row["scorer"]] += 1
    return counts
