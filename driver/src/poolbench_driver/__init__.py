"""poolbench-driver: plan, run and report suites on a cluster.

`run` measures a configuration and `load` reads a run; both are what the commands do.

From the top down; a package imports only what stands below it (`lint-imports` checks it):

    suites      one folder each; nothing below them names one
    cli         commands: arguments in, text and exit codes out
    api         the same for Python: `run` and `load`
    sharing     a run as a bundle: packed, signed, verified, on a board; pushed and pulled
    series      the runs of one command, one for each model
    job         a run in order: scope, plan, loop, tables, page; an outcome
    assemble    the tables of a run: a suite's rows, what all rows share, ranks
    report      the frame of the page           comparison    two runs, cell by cell
    release     a run to publish
    vectors     steering vectors with their cards, and the files of other tools
    pages       the page kit: boards, figures, tables and texts
    records     folders of runs, and their records in the object store
    contract    what a suite is, how it is found, its settings and metrics, and the source of its rows
    estimate    time, bytes and money of a run before it starts
    loop        the loop, its display
    stages      settings to a scope; scope to keys and tasks of vectors, probes, texts and scores
    imports     activations, scorers and autoencoders from elsewhere
    models      depth, width and revision       corpora       passages and prompts of a run
    adhoc       files and requests of the commands that ask one service
    doctor      checks of machine, cluster and models
    pilots      accuracies of pilot runs, and the data that a comparison needs
    config      the settings of a run
    cluster     store, queue, leases and HTTP of the services
    dataset_folder  folders that are written completely or not at all
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poolbench_driver.api import load, run

__all__ = ["load", "run"]


def __getattr__(name: str) -> Any:
    """Import the public functions when they are first asked for, so that commands start fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from poolbench_driver import api

    return getattr(api, name)
