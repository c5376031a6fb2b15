"""find: the best steering vector of a concept, with an honest figure, as a file with a card."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import InputError
from poolbench_driver.cli.settings_options import with_options_of
from poolbench_driver.cli.tables import AsJson, print_data
from poolbench_driver.find.settings import FindSettings

if TYPE_CHECKING:
    from poolbench_driver.find.search import Search
    from poolbench_driver.job import Job


@with_options_of(FindSettings)
def find(
    settings: FindSettings,
    output: Annotated[Path, typer.Option(help="Folder to write: vector.safetensors, card.json and a page.")],
    runs: Annotated[Path, typer.Option(help="Folder that the runs of the search lie in.")] = Path("runs"),
    as_json: AsJson = False,
    display: Annotated[str | None, typer.Option(help="Of progress: rich, plain, json or none.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and what it costs, and stop.")
    ] = False,
) -> int:
    """Find the best steering vector of a concept over strategies, layers, constructions and strengths.

    The vector is chosen on one half of the openings and its gain is read on the other. The same command continues a
    search that was interrupted.
    """
    from poolbench_driver.find.search import Search

    if output.is_file():
        raise InputError(f"{output} is a file; name a folder")
    search = Search.of(settings, output)
    return _dry_run(search, as_json=as_json) if dry_run else _find(search, output, runs, display, as_json=as_json)


def _find(search: Search, output: Path, runs: Path, display: str | None, *, as_json: bool) -> int:
    from poolbench_corpora.io import write_at_once
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.find.page import search_page
    from poolbench_driver.find.search import find as find_vector
    from poolbench_driver.loop.progress import open_display
    from poolbench_driver.pages.html import html_of
    from poolbench_driver.pages.text import json_of

    result = find_vector(
        search, open_session(), runs, lambda: open_display(display), lambda line: typer.echo(line, err=True)
    )
    page = search_page(result)
    result.vector.save(output)
    write_at_once(output / "view.json", json_of(page))
    write_at_once(output / "index.html", html_of(page))
    files = {"vector": str(output), "page": str(output / "index.html")}
    if as_json:
        print_data({"answer": [page.answer.text, *page.answer.sentences], **files})
    else:
        lines = [page.answer.text, *page.answer.sentences, *(f"{name}: {file}" for name, file in files.items())]
        typer.echo("\n".join(lines))
    return Exit.DONE


def _dry_run(search: Search, *, as_json: bool) -> int:
    """Print the cost of a search. Only the number of strategies to steer along is known before the search."""
    from poolbench_driver.cli.dry_run import cluster_of, show_dry_run
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.series import prepare_dry

    session = open_session()
    (probing,), _ = prepare_dry([search.settings.probing()], session)
    scope = probing.plan.scope  # type: ignore[attr-defined]
    steered = [spec.id for spec in scope.strategies][: search.settings.candidates]
    steering = [search.settings.steering(layer, steered) for layer in scope.layers]
    jobs, missing = prepare_dry([search.settings.probing(), *steering], session)
    jobs[-1] = _with_necessity(jobs[-1])
    code = show_dry_run(jobs, cluster_of(0, None, None), [], missing, as_json=as_json)
    typer.echo(
        "The tasks of the last layer have those that erase its vectors (necessity); damage, side effects and what else "
        "is measured of the chosen vector are not counted.",
        err=True,
    )
    if search.judge.model is not None:
        typer.echo(f"Ratings to ask for: about {scope.config.budget.num_openings}.", err=True)
    return code


def _with_necessity(job: Job) -> Job:
    """Return the run of a layer, and the work of erasing its best vectors, of which count is enough too."""
    from poolbench_driver.find.necessity import plan_necessity
    from poolbench_driver.find.search import candidates_of
    from poolbench_driver.stages.plan import ConceptsPlan
    from poolbench_driver.stages.stage import Stage, joined

    plan = job.plan
    assert isinstance(plan, ConceptsPlan)
    candidates = list(candidates_of(plan.scope.config, plan.scope.steering_layer))
    further = plan_necessity(plan, candidates, job.session.artifacts)
    return replace(job, plan=replace(plan, work=joined([Stage(plan.work), further])))
