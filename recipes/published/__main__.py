"""`python -m recipes.published QUESTION PATH...`: answer a question about tables that others published.

holmes TABLE          which claims of the paper on Holmes a table of the public leaderboard supports
holmes-figures WHOLE SHARES   write figures of docs/results/holmes-recorded.md: types, sizes, shares of the data
flash WHOLE SHARE     how far the table of a share of the training data keeps the order of the whole one
ce-bench FOLDER       which claims about sparse autoencoders a tree of recorded results supports
saebench TABLE        how scores of recorded autoencoders agree with those of SAEBench
official              whether the published tables of PoolBench v1 agree with their own means, ranks and tests
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from recipes.published import ce_bench, flash, holmes, holmes_figures, saebench, table

from poolbench.errors import PoolbenchError
from poolbench_driver.suites.ce_bench.recordings import read_tree
from poolbench_driver.suites.holmes.recordings import read_scores

#: What answers each question, and the number of paths that it takes.
QUESTIONS: dict[str, tuple[int, Callable[..., str]]] = {
    "holmes": (1, lambda file: holmes.claims_markdown(read_scores(file))),
    "holmes-figures": (2, holmes_figures.write),
    "flash": (2, lambda whole, share: flash.flash_markdown(read_scores(whole), read_scores(share))),
    "ce-bench": (1, lambda folder: ce_bench.claims_markdown(read_tree(folder).entries)),
    "saebench": (1, saebench.agreement),
    "official": (0, table.checks_markdown),
}


def main(arguments: Sequence[str]) -> int:
    """Print the answer; return 2 for a wrong question, and for files that cannot be used."""
    question, *paths = arguments or [""]
    count, answer = QUESTIONS.get(question, (-1, str))
    if len(paths) != count:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(answer(*map(Path, paths)))
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
