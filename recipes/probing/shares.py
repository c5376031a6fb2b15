"""How far a share of the data keeps the order of entrants, from the runs of `python -m recipes.probing`."""

from collections.abc import Sequence

from recipes.published.flash import HEAD, agreement, chosen

from poolbench_driver.pages.text import table
from poolbench_driver.records import Run
from poolbench_driver.suites.holmes.metrics import SCORE
from poolbench_driver.suites.holmes.rates import score_matrix
from poolbench_driver.suites.holmes.recordings import DEFINITIONS


def shares(compared: Sequence[Run]) -> str:
    """Return the part of the page on shares of the data.

    Args:
        compared: Runs of one model: in whole, with a share of train, and with a share of dev and test too.
    """
    whole, *smaller = (score_matrix(run.read_table("results").to_pylist()) for run in compared)
    costs = [_cost(run) for run in compared]
    lines = []
    for (names, sets, values), label, cost in zip(
        smaller, ("share of train", "and of dev and test"), costs[1:], strict=True
    ):
        common = [name for name in whole[0] if name in names], [name for name in whole[1] if name in sets]
        ours, others = (
            chosen(board[2], (board[0], common[0]), (board[1], common[1])) for board in (whole, (names, sets, values))
        )
        parts = [f"{100 * part / of:.0f} %" if of else "" for part, of in zip(cost, costs[0], strict=True)]
        lines += [[label, definition, *agreement(ours, others, definition), *parts] for definition in DEFINITIONS]
    return "\n\n".join(
        [
            "## What a share of the data keeps",
            f"{len(whole[0])} entrants of `demo` on {len(whole[1])} sets, against the same in whole.",
            table(["of the data", *HEAD[1:], "texts read", "probe seconds"], lines),
        ]
    )


def _cost(run: Run) -> tuple[float, float]:
    """Return instances that were read, and seconds of all probes."""
    sets, rows = (run.read_table(name).to_pylist() for name in ("sets", "results"))
    seconds = sum(row["wall_s"] or 0.0 for row in rows if row["metric"] == SCORE)
    return sum(row["num_instances"] for row in sets), seconds
