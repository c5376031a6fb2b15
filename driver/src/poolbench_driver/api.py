"""What Python code calls: measure a configuration, and read a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poolbench_driver.cluster.session import open_session
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.job import Outcome
from poolbench_driver.loop.progress import open_display
from poolbench_driver.records import RunFolder, find_run
from poolbench_driver.series import prepare_all


def run(
    config: RunConfig | Mapping[str, Any] | Path | str,
    *,
    output: Path | str = "runs",
    display: str = "none",
    max_failures: int | None = None,
) -> Outcome:
    """Measure a configuration on the cluster, as the command `run` does; the same call continues an interrupted run.

    Args:
        config: A configuration, the settings of one (such as `{"preset": "demo", "concepts": ["contrast"]}`), or a
            YAML file of settings.
        output: Folder that runs lie in.
        display: How progress is shown: rich, plain, json or none.
        max_failures: Failed tasks after which the run stops; None for no limit.

    Returns:
        The outcome: state, failures, tables by name, the suite's answer, and the run's folder.

    Raises:
        PoolbenchError: The configuration cannot be measured, or the cluster is not there.
    """
    if not isinstance(config, RunConfig):
        settings = dict(config) if isinstance(config, Mapping) else {}
        config = load_run_config(None if isinstance(config, Mapping) else Path(config), settings)
    (job,) = prepare_all([config], open_session())
    return job.run(RunFolder.create(Path(output), job.config), open_display(display), max_failures)


def load(run: Path | str = "latest", *, output: Path | str = "runs") -> RunFolder:
    """Return a run, whose tables `read_table` reads; one of another machine is fetched from the object store first.

    Args:
        run: Its folder, its id, `latest`, or `<store>/runs/<id>` with the URI of an object store.
        output: Folder that runs lie in.

    Raises:
        NotFoundError: No run has this name.
    """
    return find_run(Path(output), str(run))
