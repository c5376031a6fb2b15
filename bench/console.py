"""The console in Chromium: the page of a run as a file, and the board over many runs.

    python bench/console.py [--smallest] [--runs N] [--run FOLDER]

The runs of the board are made here: random figures of 17 concepts, 31 strategies and 3 layers for four metrics each.
`--run` is a finished run whose page is written and opened (default: the newest of `runs/`). bench/README.md explains
the figures.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from common import REPOSITORY, Parser, write_report
from driver.tests.console.conftest import CHROMIUM, chromium, serving
from ratios import RATIOS

from poolbench.statuses import RunState
from poolbench_driver.console.app import Console
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import Run, Runs
from poolbench_driver.records.folder import create_run, write_state, write_table
from poolbench_driver.report.making import page_of
from poolbench_driver.report.making import write_report as write_page
from poolbench_driver.results import RESULT_SCHEMA

METRICS = ("d1.auroc", "d1.auroc_test", "d2.best_gain", "d3.robust_ld")
#: Seconds from navigation until the first view is painted, and until scripts have run.
_PAINTED = """new Promise((done) => new PerformanceObserver((list) => {
    for (const entry of list.getEntriesByName("first-contentful-paint")) done(entry.startTime / 1000);
}).observe({ type: "paint", buffered: true }))"""
_READY = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd / 1000"


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--run", type=Path, default=REPOSITORY / "runs" / "latest")
    return parser.options(runs=3)


def results(number: int, rng: np.random.Generator) -> pa.Table:
    """Return the results of one run: 6,324 rows of random figures."""
    concepts, strategies, layers = range(17), range(31), (8, 16, 24)
    keys = [(m, c, s, layer) for m in METRICS for c in concepts for s in strategies for layer in layers]
    values = rng.normal(0.8, 0.05, len(keys)) - 0.002 * np.array([s for _, _, s, _ in keys])
    columns: dict[str, Any] = {
        name: pa.nulls(len(keys), RESULT_SCHEMA.field(name).type) for name in RESULT_SCHEMA.names
    }
    texts = {"suite": "poolbench", "protocol": "corrected", "budget": "full", "dataset": "made",
             "dataset_revision": "made", "model": f"model-{number:03}", "status": "ok"}  # fmt: skip
    columns |= {name: pa.array([text] * len(keys)) for name, text in texts.items()}
    columns |= {
        "cell_id": pa.array([f"{number}-{place}" for place in range(len(keys))]),
        "metric": pa.array([m for m, *_ in keys]),
        "concept": pa.array([f"concept-{c:02}" for _, c, _, _ in keys]),
        "strategy": pa.array([f"strategy-{s:02}" for _, _, s, _ in keys]),
        "layer": pa.array([layer for *_, layer in keys], pa.int32()),
        "value": pa.array(values),
        "ci_low": pa.array(values - 0.03),
        "ci_high": pa.array(values + 0.03),
    }
    return pa.table(columns).select(RESULT_SCHEMA.names)


def make_runs(output: Path, number: int) -> None:
    """Write some runs."""
    rng = np.random.default_rng(0)
    for place in range(number):
        folder = create_run(output, load_run_config(None, {"preset": "demo", "seed": place}))
        write_table(folder, "results", results(place, rng))
        write_state(folder, RunState.DONE)


#: Ends when what was painted last is on the screen.
_DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


#: Resolves with the seconds from a click on an element until other lines are painted.
_CLICKED = """(element) => new Promise((done) => {
    const started = performance.now();
    new MutationObserver((_, observer) => {
        observer.disconnect();
        requestAnimationFrame(() => requestAnimationFrame(() => done((performance.now() - started) / 1000)));
    }).observe(document.querySelector("main"), { childList: true });
    element.click();
})"""


def memory_mb(browser: Any) -> float:
    """Return the memory that the processes of all tabs hold for themselves alone, in MB."""
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    numbers = [process["id"] for process in processes if process["type"] == "renderer"]
    return sum(psutil.Process(number).memory_full_info().uss for number in numbers) / 1e6


def board_figures(browser: Any, output: Path) -> dict[str, float]:
    """Return what the board over all runs costs: its first view, one order, one filter, and the memory of its tab."""
    with serving(Console(Runs(output)).application()) as address:
        page = browser.new_page()
        started = time.perf_counter()
        page.goto(f"{address}/board")
        page.evaluate(_DRAWN)
        first_s = time.perf_counter() - started
        sort_s = [page.get_by_role("link", name="d1.auroc_test").evaluate(_CLICKED) for _ in range(9)]
        filter_s = []
        for number in range(9):
            page.get_by_label("lines with the words").fill(f"strategy-{number:02}")
            filter_s.append(page.get_by_role("button", name="Show").evaluate(_CLICKED))
        tab_mb = memory_mb(browser)
        page.close()
    return {"console.first_view_s": first_s, "console.sort_s": median(sort_s), "console.filter_s": median(filter_s),
            "console.tab_mb": tab_mb}  # fmt: skip


def file_figures(browser: Any, run: Path) -> dict[str, float]:
    """Return what the page of a run costs as a file: writing, size, first view, and until it answers."""
    with tempfile.TemporaryDirectory() as copies:
        folder = Run(Path(shutil.copytree(run.resolve(), Path(copies) / run.resolve().name)))
        page_of(folder)  # loads the libraries, as the driver of a run has
        started = time.perf_counter()
        file = write_page(folder)
        write_s = time.perf_counter() - started
        opened = []
        for _ in range(5):
            page = browser.new_page()
            page.goto(file.as_uri())
            page.evaluate(_DRAWN)
            opened.append((page.evaluate(_PAINTED), page.evaluate(_READY)))
            page.close()
        size = file.stat().st_size
    painted, ready = (sorted(times)[2] for times in zip(*opened, strict=True))
    return {"console.file_write_s": write_s, "console.file_mb": size / 1e6, "console.file_first_view_s": painted,
            "console.file_interactive_s": ready}  # fmt: skip


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    if CHROMIUM is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    file = dict.fromkeys((name for name in RATIOS["console"] if ".file_" in name), None)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        make_runs(Path(folder), settings.runs)
        board = board_figures(browser, Path(folder))
        if (settings.run / "results.parquet").is_file():
            file |= file_figures(browser, settings.run)
    note = f"{settings.runs} runs of 6,324 figures; " + (
        "no finished run to write" if None in file.values() else settings.run.resolve().name
    )
    write_report("console", settings, board | file, {"of": note})


if __name__ == "__main__":
    main()
