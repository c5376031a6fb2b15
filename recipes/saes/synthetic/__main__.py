"""`python -m recipes.saes.synthetic`: write docs/results/ce-bench-synthetic.md; 15 seconds on one core."""

import argparse
from pathlib import Path

from recipes.saes.synthetic.figures import figures
from recipes.saes.synthetic.page import page

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "results" / "ce-bench-synthetic.md"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m recipes.saes.synthetic", description=__doc__.partition(": ")[2])
    parser.add_argument("--seeds", type=int, default=10, help="draws of the model, at least 2")
    parser.add_argument("--output", type=Path, default=_PAGE, help="file for the page")
    options = parser.parse_args()
    options.output.write_text(page([figures(seed) for seed in range(options.seeds)]), "utf-8")


if __name__ == "__main__":
    main()
