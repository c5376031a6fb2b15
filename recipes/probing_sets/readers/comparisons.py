"""Comparisons of two numbers, true and false, as texts."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random

from poolbench.errors import ConfigError
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, whole

_SHARES = {"train": 0.7, "dev": 0.1, "test": 0.2}


def read_comparisons(
    definition: ProbingSet,
    archives: Path | None,
    *,
    numbers: tuple[int, int],
    pairs: int,
    less: str,
    greater: str,
) -> Iterator[Sample | Note]:
    """Yield four texts for each pair of numbers: either number first, compared either way.

    Each of a pair's two bags of words is once true and once false. A number occurs in one split only, so that a probe
    cannot learn which numbers are large.

    Args:
        numbers: The smallest and the largest number.
        pairs: At most so many pairs of numbers, in the shares of the splits.
        less: A text with `{first}` and `{second}` that is true where the first number is less than the second.
        greater: A text that is true where the first is greater.

    Raises:
        ConfigError: A text lacks `{first}` or `{second}`, or there are fewer than 30 numbers.
    """
    smallest, largest = numbers
    if lacking := [text for text in (less, greater) if "{first}" not in text or "{second}" not in text]:
        raise ConfigError(f"probing set {definition.id!r}: {lacking[0]!r} needs {{first}} and {{second}}")
    if largest - smallest < 29:
        raise ConfigError(f"probing set {definition.id!r}: numbers {smallest} to {largest}; at least 30 are needed")
    rng = Random(f"{definition.revision}:{definition.id}")
    values = rng.sample(range(smallest, largest + 1), largest - smallest + 1)
    for split, share in _SHARES.items():
        count = round(share * (largest - smallest + 1))
        drawn, values = sorted(values[:count]), values[count:]
        candidates = list(combinations(drawn, 2))
        for low, high in rng.sample(candidates, min(round(share * pairs), len(candidates))):
            for name, text, first, second in (
                ("less", less, low, high),
                ("less", less, high, low),
                ("greater", greater, high, low),
                ("greater", greater, low, high),
            ):
                yield Sample(
                    f"{first}-{name}-{second}",
                    whole(text.replace("{first}", str(first)).replace("{second}", str(second))),
                    label="true" if (first < second) is (name == "less") else "false",
                    split=split,
                    group=f"{low}-{high}",
                    where=f"{definition.id}, numbers {low} and {high}",
                )
