"""The page docs/results/data-requirements.md, from finished runs of the suite data-requirements."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from recipes.data_requirements.lengths import LENGTHS
from recipes.probing.page import with_own_colours

from poolbench.contracts import Row
from poolbench_driver.pages.drawing import COLOURS, MUTED, gridded, svg
from poolbench_driver.pages.text import paragraph, table, with_interval
from poolbench_driver.suites.data_requirements import metrics
from poolbench_driver.suites.data_requirements.report import SUFFICIENT, Comparison

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "data-requirements.md"
#: What the authors' notebook `power_curves.ipynb` printed (github.com/SPOClab-ca/probing_dataset, commit a33d578), with
#: BERT and logistic regression as the first side. Differences are second minus first; the notebook has half of those of
#: the MLP. `is_sufficient`: the power is above .8 with so many test examples of each class.
PUBLISHED = Path(__file__).with_name("published.csv")
#: Published task and number of its classes, by set; published second side, by ours. The adapter of wholly scrambled
#: text has as many training steps as theirs.
TASKS = {
    "ewt-bigram-shift": ("bigram-shift", 2),
    LENGTHS: ("sentence-length", 6),
    "ewt-coordination-inversion": ("coordination-inversion", 2),
    "ewt-tense": ("past-present", 2),
}
SCRAMBLED, STATIC, MLP = "adapter scrambled-100", "A1_mean static words", "MLP 20"
SECONDS = {SCRAMBLED: "corrupted-200", STATIC: "glove", MLP: "mlp-20"}
BIGRAM, TENSE, INVERSION = "ewt-bigram-shift", "ewt-tense", "ewt-coordination-inversion"
#: Fall of power from one size to the next that counts as none, and share of the steps that may have more.
_SMALL, _MOST_FALLS = 0.05, 0.1


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, what was published and found here, and whether it holds; None if it was not measured."""

    text: str
    published: str
    here: str
    holds: bool | None


def page(
    compared: Sequence[Comparison], noisy: Sequence[Comparison], losses: Mapping[str, Mapping[str, Any]], head: str
) -> str:
    """Return the page.

    Args:
        compared: Comparisons of models and probes on all sets.
        noisy: The states without and with noise of several standard deviations, on one set.
        losses: Held-out losses of each fine-tune, as its recipe wrote them.
        head: What was run.
    """
    claims = [claim for claim in claims_of(compared, noisy) if claim.holds is not None]
    holding = sum(bool(claim.holds) for claim in claims)
    parts = [
        "# How many examples comparisons of probes need",
        "<!-- written by recipes/data_requirements -->",
        paragraph(head),
        "```console\n$ .venv/bin/python -m recipes.data_requirements page\n```",
        paragraph(
            f'Of {len(claims)} claims of Zhu et al. (2022), "On the data requirements of probing", {holding} hold '
            "here. They compared BERT, GloVe and others on SentEval. This page has a decoder and sentences of a "
            "treebank, so that conclusions can agree, and figures cannot."
        ),
        "## Which claims hold",
        table(
            ["claim", "published", "here", "holds"],
            [[claim.text, claim.published, claim.here, "yes" if claim.holds else "no"] for claim in claims],
        ),
        "## Sizes and powers beside the published ones",
        *_beside_published(compared),
        "## Larger sets have more power",
        *_noise(noisy),
        "## The fine-tunes",
        *_losses(losses),
    ]
    return "\n\n".join(parts) + "\n"


def claims_of(compared: Sequence[Comparison], noisy: Sequence[Comparison]) -> Iterator[Claim]:
    """Yield the claims that can be judged from these comparisons."""
    by_side = {(comparison.set, comparison.name): comparison for comparison in compared}
    steps = [pair for comparison in noisy for pair in pairwise(_powers(comparison))]
    falls = sum(later < earlier - _SMALL for earlier, later in steps)
    yield Claim(
        "larger sets have more power",
        "noise study, figure",
        f"power falls by more than {_SMALL:g} in {falls} of {len(steps)} steps from one size to the next",
        falls <= _MOST_FALLS * len(steps) if steps else None,
    )
    at_largest = [powers[-1] for comparison in noisy if (powers := _powers(comparison))]
    yield Claim(
        "more noise is told apart more easily",
        "noise study, figure",
        "power at the largest size, by rising noise: " + ", ".join(f"{power:.2f}" for power in at_largest),
        all(later >= earlier - _SMALL for earlier, later in pairwise(at_largest)) if len(at_largest) > 1 else None,
    )
    enough = {side: _enough(comparison.sizes) for side, comparison in by_side.items()}
    shift, tense = (enough.get((of_set, SCRAMBLED)) for of_set in (BIGRAM, TENSE))
    yield Claim(
        "training on scrambled text shows in bigram shift with fewer examples than in tense",
        _published_enough((BIGRAM, SCRAMBLED), (TENSE, SCRAMBLED)),
        f"{_counted(shift)}; {_counted(tense)}",
        _both(by_side, (BIGRAM, SCRAMBLED), (TENSE, SCRAMBLED), shift is not None and (tense is None or shift < tense)),
    )
    static = enough.get((BIGRAM, STATIC))
    yield Claim(
        "states of a model are told apart from static words by bigram shift",
        _published_enough((BIGRAM, STATIC)),
        _counted(static),
        _both(by_side, (BIGRAM, STATIC), (BIGRAM, STATIC), static is not None),
    )
    hidden = [enough.get((of_set, MLP)) for of_set in (BIGRAM, INVERSION)]
    yield Claim(
        "a hidden layer of 20 is not told apart from logistic regression by bigram shift and coordination inversion",
        _published_enough((BIGRAM, MLP), (INVERSION, MLP)),
        "; ".join(map(_counted, hidden)),
        _both(by_side, (BIGRAM, MLP), (INVERSION, MLP), hidden == [None, None]),
    )
    margins = [margin for comparison in compared if (margin := _margin(comparison)) is not None]
    yield Claim(
        "as many training examples as the bound asks for have a power of .8",
        "verified on its sets",
        f"the bound has {min(margins):,.1f} to {max(margins):,.0f} times the recommended training examples"
        if margins
        else "",
        min(margins) >= 1 if margins else None,
    )


def _both(
    by_side: Mapping[tuple[str, str], Comparison], first: tuple[str, str], second: tuple[str, str], holds: bool
) -> bool | None:
    """Return a verdict on two comparisons, or None unless both were measured."""
    measured = [side in by_side and by_side[side].is_measured for side in (first, second)]
    return holds if all(measured) else None


def _powers(comparison: Comparison) -> list[float]:
    return [line["power"] for line in comparison.sizes if line["power"] is not None]


def _enough(sizes: Sequence[Row]) -> int | None:
    """Return the test examples of the smallest size from which on the power is .8 at each size; None without one."""
    smallest = None
    for line in reversed(sizes):
        if line["power"] is None or line["power"] < SUFFICIENT:
            break
        smallest = round(line["num_test"])
    return smallest


def _counted(num_test: int | None) -> str:
    return "at no size" if num_test is None else f"from {num_test:,} test examples on"


def _margin(comparison: Comparison) -> float | None:
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


def _published_enough(*sides: tuple[str, str]) -> str:
    return "; ".join(_counted(_enough(published_of(*side))) for side in sides)


def _beside_published(compared: Sequence[Comparison]) -> Iterator[str]:
    yield paragraph(
        "Difference: accuracy of the second side minus that of the first, the states of the pretrained model under "
        "logistic regression, with 95 % intervals over folds, at the largest size. Test for .8: the test examples from "
        "which on McNemar's test has a power of .8 at each size that was tried. Recommended: examples of all splits "
        "for a power of .8. Bound: training examples by the published formula. The published columns are those of the "
        "largest size, by the authors' notebook, where a side has a counterpart: BERT after 200 steps on "
        "shuffled words for `scrambled-100`, GloVe for static words, and the MLP on BERT for the MLP."
    )
    heads = ["set", "second side", "difference", "power (test examples)", "test for .8", "recommended", "bound"]
    heads += [f"published {name}" for name in ("difference", "test for .8", "bound")]
    order = {name: place for place, name in enumerate(TASKS)}
    lines = []
    for comparison in sorted(compared, key=lambda comparison: (order.get(comparison.set, len(order)), comparison.name)):
        enough, power = _enough(comparison.sizes), comparison.figures[metrics.POWER]
        published = published_of(comparison.set, comparison.name)
        there = _enough(published)
        num_test = "" if power["n"] is None else f" ({power['n']:,})"
        lines.append(
            [
                *(comparison.set, comparison.name, _cell(comparison, metrics.DIFFERENCE, "+.3f")),
                _cell(comparison, metrics.POWER, ".2f") + num_test,
                "none" if enough is None else f"{enough:,}",
                *(_cell(comparison, metric, ",.0f") for metric in (metrics.RECOMMENDED, metrics.PUBLISHED)),
                *(
                    [
                        f"{float(published[-1]['difference']):+.3f}",
                        "none" if there is None else f"{there:,}",
                        f"{int(published[-1]['num_train']):,}",
                    ]
                    if published
                    else [""] * 3
                ),
            ]
        )
    yield table(heads, lines)


def _cell(comparison: Comparison, metric: str, spec: str) -> str:
    """Return a figure with its interval, or why there is none."""
    row = comparison.figures[metric]
    if row["value"] is None:
        return str(row["status"])
    return with_interval(row["value"], (row["ci_low"], row["ci_high"]), spec)


def _noise(noisy: Sequence[Comparison]) -> Iterator[str]:
    yield paragraph(
        "Normal noise is added to every number of the states, and their probe is compared with that of the states as "
        f"they are, on {noisy[0].set}. Power of McNemar's test of one fold, by examples of all splits and standard "
        "deviation of the noise:"
    )
    yield "![power by number of examples, one line per deviation of the noise](data-requirements.svg)"
    sizes = [line["size"] for line in noisy[0].sizes]
    heads = ["noise", *(f"{size:,}" for size in sizes), "difference", "recommended"]
    yield table(
        heads,
        [
            [
                f"{deviation_of(comparison):g}",
                *("" if line["power"] is None else f"{line['power']:.2f}" for line in comparison.sizes),
                _cell(comparison, metrics.DIFFERENCE, "+.3f"),
                _cell(comparison, metrics.RECOMMENDED, ",.0f"),
            ]
            for comparison in noisy
        ],
    )


def deviation_of(comparison: Comparison) -> float:
    """Return the standard deviation of the noise that the second side has, by its name."""
    match = re.fullmatch(r"noise (\S+)", comparison.name)
    if match is None:
        raise ValueError(f"{comparison.name!r} is not the name of a configuration that differs in noise alone")
    return float(match[1])


def picture(noisy: Sequence[Comparison]) -> str:
    """Return the power by size, a line for each standard deviation of the noise, as an SVG with colours of its own."""

    def draw(axes: Any) -> None:
        for colour, comparison in zip(COLOURS, noisy, strict=False):
            lines = [line for line in comparison.sizes if line["power"] is not None]
            points = [line["size"] for line in lines], [line["power"] for line in lines]
            axes.plot(*points, color=colour, marker="o", ms=4, lw=1.4, label=f"{deviation_of(comparison):g}")
        axes.axhline(SUFFICIENT, color=MUTED, lw=0.8, ls="--")
        axes.set_xscale("log")
        axes.set_ylim(-0.03, 1.03)
        gridded(axes, "examples of all splits", "power")
        axes.minorticks_off()
        axes.legend(title="noise", fontsize=8, frameon=False)

    return with_own_colours(svg((6.4, 3.4), "data-requirements-noise", "Power by size and noise", draw))


def _losses(losses: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    steps = {entry["steps"] for entry in losses.values()}
    yield paragraph(
        f"LoRA adapters after {', '.join(map(str, sorted(steps)))} steps on texts of the archives, whose words are put "
        "into a random order: none for `clean`, a quarter of each text for `scrambled-25`, all for `scrambled-100`. "
        "Mean loss per token of held-out texts in nats, before and after:"
    )
    heads = ["fine-tune", "clean before", "clean after", "scrambled before", "scrambled after"]
    kinds = [(kind, time) for kind in ("clean", "scrambled") for time in ("before", "after")]
    yield table(
        heads, [[name, *(f"{entry[time][kind]:.3f}" for kind, time in kinds)] for name, entry in losses.items()]
    )
