"""`make real-text`: build all concepts that the real-text archives serve, audit and measure them.

It needs the archives and a cluster that runs. The same command again goes on where the last one stopped. At the end
it writes the page of results.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from recipes.annotator.archive import archive_folder
from recipes.real_text.page import page
from recipes.real_text.steps import FINISHED, build, built, measure

from poolbench.corpora.real import ARCHIVES_VARIABLE
from poolbench.errors import ConfigError
from poolbench.runtime.settings import ClusterSettings
from poolbench_driver.records import find_run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "real-text.md"


def main() -> int:
    """Build, audit, run and write the page. Without archives or cluster, say so and return 1 before any work."""
    args = _arguments()
    archives = archive_folder()
    if not archives.is_dir():
        print(f"error: no real-text archives at {archives}; name their folder in {ARCHIVES_VARIABLE}", file=sys.stderr)
        return 1
    try:
        ClusterSettings.load()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    os.environ[ARCHIVES_VARIABLE] = str(archives)
    corpus = args.output / "corpus"
    lacking = build(corpus, args.budget, args.concepts)
    code = measure(args.output, built(corpus), args.budget, args.strategies, args.limit)
    if code in FINISHED:
        args.page.write_text(page(find_run(args.output, "latest"), corpus, lacking), "utf-8")
        print(f"page: {args.page}")
    return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs-real-text"), help="folder of corpora and run")
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write")
    parser.add_argument("--budget", default="demo", help="sizes of corpora and run: demo, card or full")
    parser.add_argument("--concepts", default="all", help="ids with commas; default: all that the archives serve")
    parser.add_argument("--strategies", default="card", help="with commas")
    parser.add_argument("--limit", type=int, help="passages per concept and split, for a trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
