"""Claims of Zhu et al. (2022), judged by comparisons of the suite data-requirements."""

import csv
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from recipes.data_requirements.lengths import LENGTHS

from poolbench.contracts import Row
from poolbench_driver.pages.text import paragraph, table
from poolbench_driver.suites.data_requirements import metrics
from poolbench_driver.suites.data_requirements.report import SetComparison
from poolbench_driver.suites.data_requirements.size_comparison import SUFFICIENT

#: What the authors' notebook `power_curves.ipynb` printed (github.com/SPOClab-ca/probing_dataset, commit a33d578), with
#: BERT and logistic regression as the first side. Differences are second minus first; the notebook has half of those of
#: the MLP. `is_sufficient`: the power is above .8 with so many test examples of each class.
PUBLISHED = Path(__file__).with_name("published.csv")
BIGRAM, INVERSION, TENSE = "ewt-bigram-shift", "ewt-coordination-inversion", "ewt-tense"
#: Published task and number of its classes, by set; published second side, by ours.
TASKS = {
    BIGRAM: ("bigram-shift", 2),
    LENGTHS: ("sentence-length", 6),
    INVERSION: ("coordination-inversion", 2),
    TENSE: ("past-present", 2),
}
SCRAMBLED, STATIC, MLP, NOISE = "adapter scrambled-100", "A1_mean static words", "MLP 20", "noise "
SECONDS = {SCRAMBLED: "corrupted-200", STATIC: "glove", MLP: "mlp-20"}
#: Claims about the test examples from which on sides are distinguished (None: at no size), and how each is judged.
_CLAIMS = (
    (
        "training on scrambled text shows in bigram shift with fewer examples than in tense",
        ((BIGRAM, SCRAMBLED), (TENSE, SCRAMBLED)),
        lambda shift, tense: shift is not None and (tense is None or shift < tense),
    ),
    ("states are distinguished from static words by bigram shift", ((BIGRAM, STATIC),), bool),
    (
        "an MLP of 20 units is not distinguished from logistic regression by bigram shift and coordination inversion",
        ((BIGRAM, MLP), (INVERSION, MLP)),
        lambda *sizes: not any(sizes),
    ),
)
#: Fall of power from one size or noise to the next that counts as none, and share of the steps that may have more.
_SMALL, _MOST_FALLS = 0.05, 0.1


class Claim(NamedTuple):
    """A claim of the paper, what was published and found here, and whether it holds."""

    text: str
    published: str
    here: str
    holds: bool


def claims_table(claims: Sequence[Claim]) -> str:
    """Return the part of the page on the claims of the paper."""
    intro = (
        f'Of {len(claims)} claims of Zhu et al. (2022), "On the data requirements of probing", '
        f"{sum(claim.holds for claim in claims)} hold here. They compared BERT, GloVe and others on SentEval. This "
        "page has a decoder and sentences of a treebank, so that conclusions can agree, and figures cannot. Test "
        "examples are those from which on McNemar's test has a power of .8 at each size that was tried."
    )
    lines = [[*claim[:3], "yes" if claim.holds else "no"] for claim in claims]
    return "\n\n".join(
        ["## Claims of the paper", paragraph(intro), table(["claim", "published", "here", "holds"], lines)]
    )


def claims_of(compared: Sequence[SetComparison], noisy: Sequence[SetComparison]) -> Iterator[Claim]:
    """Yield the claims that these comparisons can judge."""
    powers = [[line["power"] for line in comparison.sizes if line["power"] is not None] for comparison in noisy]
    steps = [later - earlier for by_size in powers for earlier, later in pairwise(by_size)]
    falls = sum(step < -_SMALL for step in steps)
    here = f"power falls by more than {_SMALL:g} in {falls} of {len(steps)} steps from one size to the next"
    yield Claim("larger sets have more power", "figure of the noise study", here, falls <= _MOST_FALLS * len(steps))
    at_largest = [by_size[-1] for by_size in powers if by_size]
    here = "power at the largest size, by rising noise: " + ", ".join(f"{power:.2f}" for power in at_largest)
    rises = all(later >= earlier - _SMALL for earlier, later in pairwise(at_largest))
    yield Claim("more noise is distinguished more easily", "figure of the noise study", here, rises)
    enough = {(side.set, side.name): num_test_enough(side.sizes) for side in compared if side.is_measured}
    for text, sides, judge in _CLAIMS:
        if all(side in enough for side in sides):
            sizes = [enough[side] for side in sides]
            published = [num_test_enough(published_of(*side)) for side in sides]
            texts = ["; ".join(map(_counted, part)) for part in (published, sizes)]
            yield Claim(text, texts[0], texts[1], bool(judge(*sizes)))
    if margins := [margin for comparison in compared if (margin := _margin(comparison)) is not None]:
        here = f"the bound has {min(margins):,.1f} to {max(margins):,.0f} times the recommended training examples"
        yield Claim("the training examples of the bound are enough", "verified on its sets", here, min(margins) >= 1)


def num_test_enough(sizes: Sequence[Row]) -> int | None:
    """Return the test examples of the smallest size from which on the power is .8 at each size; None without one."""
    smallest = None
    for line in reversed(sizes):
        if line["power"] is None or line["power"] < SUFFICIENT:
            break
        smallest = round(line["num_test"])
    return smallest


def _counted(num_test: int | None) -> str:
    return "at no size" if num_test is None else f"from {num_test:,} test examples on"


def _margin(comparison: SetComparison) -> float | None:
    """Return the training examples of the published bound for each one that is recommended."""
    bound, recommended = comparison.value(metrics.PUBLISHED), comparison.value(metrics.RECOMMENDED)
    if bound is None or recommended is None:
        return None
    largest = comparison.sizes[-1]
    return bound / (recommended * float(largest["num_train"]) / float(largest["size"]))


def published_of(of_set: str, second: str) -> list[Row]:
    """Return the published lines of a set and second side, the smallest size first; empty without a counterpart."""
    task, classes = TASKS.get(of_set, ("", 0))
    with PUBLISHED.open(encoding="utf-8") as file:
        return [
            {**row, "num_test": int(row["per_class"]) * classes, "power": float(row["is_sufficient"] == "true")}
            for row in csv.DictReader(file)
            if (row["task"], row["second"]) == (task, SECONDS.get(second))
        ]
