"""find: the best steering vector of a concept, with an honest figure, as a file with a card."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, InputError, shown
from poolbench_driver.cli.tables import AsJson, print_data

if TYPE_CHECKING:
    from poolbench_driver.adhoc.endpoint import EndpointModel
    from poolbench_driver.job import Job
    from poolbench_driver.suites.poolbench.search.runs import Search


def find(
    concept: Annotated[str, typer.Argument(help="Concept id, also of your own (`concept add`).")],
    output: Annotated[Path, typer.Option(help="Folder to write: vector.safetensors, card.json and a page.")],
    model: Annotated[str | None, typer.Option(help="Preset id, folder or Hugging Face id.")] = None,
    budget: Annotated[str | None, typer.Option(help="demo (the default), small, card or full.")] = None,
    layers: Annotated[str | None, typer.Option(help="Comma-separated block indices or depths.")] = None,
    strategies: Annotated[str | None, typer.Option(help="Comma-separated ids or boards; default: card.")] = None,
    constructions: Annotated[str, typer.Option(help="Comma-separated, such as C1,C3,C4.")] = "C1",
    candidates: Annotated[int, typer.Option(min=1, help="Strategies to steer along at each layer.")] = 6,
    corpus: Annotated[str | None, typer.Option(help="planted, real, or a folder.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of folds, halves, nulls and scorers.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Any setting, such as budget.num_openings=20; repeatable."),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="Benign texts to measure damage on, in place of test passages.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Minimal pairs to measure damage on: JSONL with good and bad.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint that rates texts, such as https://host/v1.")
    ] = None,
    judge_model: Annotated[str, typer.Option(help="Its model; by default what it chooses.")] = "",
    judge_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds its key; by default no key is sent.")
    ] = None,
    ratings: Annotated[
        Path | None, typer.Option(help="Ratings of people in place of an endpoint: CSV with text_id and rating.")
    ] = None,
    side_effects: Annotated[
        str | None, typer.Option(help="Concepts whose scorers read the texts too; default: neighbours that have one.")
    ] = None,
    robustness: Annotated[
        bool, typer.Option("--robustness", help="Try it behind context, reworded and at other temperatures too.")
    ] = False,
    paraphrases: Annotated[
        Path | None, typer.Option(help="Openings in your words: JSONL with prompt_id or opening, and text.")
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", metavar="<path>", help="Folder of a vector that is added to it; repeatable."),
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Measure other methods too; costs the texts of about 12 candidates.")
    ] = False,
    later_layers: Annotated[
        bool,
        typer.Option("--later-layers", help="Read test passages again without the vector, for D1 at later layers."),
    ] = False,
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
    from poolbench_driver.cli.run import layers_of, names_of
    from poolbench_driver.config import read_assignments
    from poolbench_driver.suites.poolbench.search.damage import UserTexts
    from poolbench_driver.suites.poolbench.search.judge import Judge
    from poolbench_driver.suites.poolbench.search.robustness import Robustness
    from poolbench_driver.suites.poolbench.search.runs import Search

    if (paraphrases or others) and not robustness:
        raise ConfigError("--paraphrases and --with belong to --robustness; add it")
    settings: dict[str, Any] = {"model": model, "preset": budget, "seed": seed, "strategies": names_of(strategies)}
    settings |= {"layers": layers_of(layers), "corpus": {"source": corpus} if corpus else None}
    if output.is_file():
        raise InputError(f"{output} is a file; name a folder")
    search = Search(
        concept,
        settings,
        constructions=names_of(constructions) or [],
        num_strategies=candidates,
        assignments=read_assignments(sets or []),
        user_texts=UserTexts.read(texts, pairs),
        judge=Judge(output, _endpoint(judge, judge_model, judge_key_env), ratings),
        side_effects=names_of(side_effects) or (),
        robustness=Robustness(paraphrases, others or ()) if robustness else None,
        baselines=baselines,
        later_layers=later_layers,
    )
    return _dry_run(search, as_json=as_json) if dry_run else _find(search, output, runs, display, as_json=as_json)


def _endpoint(address: str | None, model: str, key_env: str | None) -> EndpointModel | None:
    """Return the model that rates texts, None without one. Raise ConfigError for options that cannot be used."""
    from poolbench_driver.adhoc.endpoint import EndpointModel

    if address is None and (model or key_env):
        raise ConfigError("--judge-model and --judge-key-env belong to --judge; name the endpoint")
    key = os.environ.get(key_env) if key_env else None
    if key_env and not key:
        raise ConfigError(f"--judge-key-env {shown(key_env)}: this environment variable is not set")
    if address is None:
        return None
    return EndpointModel(address, model, key, max_tokens=512, temperature=0.0, tries=2, timeout_s=60.0)


def _find(search: Search, output: Path, runs: Path, display: str | None, *, as_json: bool) -> int:
    from poolbench_corpora.io import write_at_once
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.loop.progress import open_display
    from poolbench_driver.pages.html import html_of
    from poolbench_driver.pages.text import json_of
    from poolbench_driver.suites.poolbench.search.page import search_page
    from poolbench_driver.suites.poolbench.search.runs import find as find_vector

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
    """Say what a search costs: of the strategies to steer along, which it will only know later, count is enough."""
    from poolbench_driver.cli.dry_run import cluster_of, show_dry_run
    from poolbench_driver.cluster.session import open_session
    from poolbench_driver.series import prepare_dry

    session = open_session()
    (probing,), _ = prepare_dry([search.probing()], session)
    scope = probing.plan.scope  # type: ignore[attr-defined]
    steered = [spec.id for spec in scope.strategies][: search.num_strategies]
    steering = [search.steering(layer, steered) for layer in scope.layers]
    jobs, missing = prepare_dry([search.probing(), *steering], session)
    jobs[-1] = _with_necessity(jobs[-1])
    code = show_dry_run(jobs, cluster_of(0, None, None), [], missing, as_json=as_json)
    typer.echo(
        "The tasks of the last layer have those that erase its vectors (necessity); damage, side effects and what else "
        "is measured of the chosen vector are not counted.",
        err=True,
    )
    if search.judge is not None and search.judge.model is not None:
        typer.echo(f"Ratings to ask for: about {scope.config.budget.num_openings}.", err=True)
    return code


def _with_necessity(job: Job) -> Job:
    """Return the run of a layer, and the work of erasing its best vectors, of which count is enough too."""
    from poolbench_driver.stages.stage import Stage, joined
    from poolbench_driver.suites.poolbench.plan import PoolBenchPlan
    from poolbench_driver.suites.poolbench.search.necessity import plan_necessity
    from poolbench_driver.suites.poolbench.search.runs import candidates_of

    plan = job.plan
    assert isinstance(plan, PoolBenchPlan)
    candidates = list(candidates_of(plan.scope.config, plan.scope.steering_layer))
    further = plan_necessity(plan, candidates, job.session.artifacts)
    return replace(job, plan=replace(plan, work=joined([Stage(plan.work), further])))
