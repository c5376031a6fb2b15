"""PoolBench driver: plan, run and report suites on a cluster.

`connect` connects to a cluster, `load` reads a run, and `run` measures a configuration. The commands call the same
functions.

The packages, from the top down. A package imports only packages below it, which `lint-imports` checks:

    cli         commands: arguments in, text and exit codes out
    find        the search for the best steering vector of a concept, which starts runs
    api         the Python interface, which the commands use: a cluster, runs, and requests to one service
    sharing     bundles of runs: pack, sign, verify, list on a board, push and pull
    series      the runs of one command, one for each model
    job         the steps of a run in order: scope, plan, loop, tables, page
    assemble    the tables of a run: rows of the suite, columns that all rows share, ranks
    report      the frame of the page           comparison    two runs, cell by cell
    trackers    tools that follow experiments, such as MLflow
    release     export of a run, and of its activations, directions, scorers and texts
    vectors     steering vectors with their cards, and the files of other tools
    suites      one folder each; nothing below them names one
    pages       the page kit: boards, figures, tables and texts
    records     runs: read, found by name, and written while they are in work
    contract    the interface of suites: registry, settings, metrics, and the source of their rows
    estimate    time, bytes and money of a run before it starts
    loop        sends tasks, waits for results, shows progress
    stages      from settings to the tasks and artifact keys of vectors, probes, texts and scores
    imports     activations, scorers and autoencoders from elsewhere
    models      depth, width and revision of models       corpora       passages and prompts of a run
    queries     files and requests of the commands that ask one service
    doctor      checks of machine, cluster and models
    pilots      accuracies of pilot runs, and the number of passages that a comparison needs
    config      the settings of a run               results     result rows: columns, identity of a cell, digest
    statistics  ranks, tests and their power        cluster     store, queue, leases and HTTP of the services
    dataset_folder  folders that are written completely or not at all
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolbench_driver.api.answers import Direction, Embeddings, Explained, Probed, Scores
    from poolbench_driver.api.cluster import AsyncCluster, Cluster, connect
    from poolbench_driver.api.driving import RunHandle, run
    from poolbench_driver.api.listing import ls
    from poolbench_driver.api.loading import Comparison, Leaderboard, Ranks, Run, leaderboard, load, ranks
    from poolbench_driver.api.notebook import Board, Chart, Rows, View
    from poolbench_driver.api.steering import Piece, SteeredTexts

__all__ = [
    "AsyncCluster", "Board", "Chart", "Cluster", "Comparison", "Direction", "Embeddings", "Explained", "Leaderboard",
    "Piece", "Probed", "Ranks", "Rows", "Run", "RunHandle", "Scores", "SteeredTexts", "View", "connect",
    "leaderboard", "load", "ls", "ranks", "run",
]  # fmt: skip
#: Public names by the module of `api` that has them.
_PLACES = {
    "answers": ("Direction", "Embeddings", "Explained", "Probed", "Scores"),
    "cluster": ("AsyncCluster", "Cluster", "connect"),
    "driving": ("RunHandle", "run"),
    "listing": ("ls",),
    "loading": ("Comparison", "Leaderboard", "Ranks", "Run", "leaderboard", "load", "ranks"),
    "notebook": ("Board", "Chart", "Rows", "View"),
    "steering": ("Piece", "SteeredTexts"),
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used, so that commands start fast."""
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"poolbench_driver.api.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
