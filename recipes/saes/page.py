"""`python -m recipes.saes.page RUN...`: write docs/results/ce-bench.md from runs of the pretrained autoencoders."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from recipes.saes.plans import PRETRAINED

from poolbench_driver.contract.registry import SUITES
from poolbench_driver.pages.text import markdown_of, paragraph
from poolbench_driver.records import Run, Runs
from poolbench_driver.suites.ce_bench.config import CeBenchConfig

_SOURCES = {
    True: ("Planted stories", "The stories of `--stories planted`."),
    False: ("Pairs of real passages", "The corpus of `python -m recipes.passages all`."),
}
#: Parts of a run's page that `poolbench-driver leaderboard` prints.
_LEFT_OUT = ("published", "size", "subject", "subjects", "features")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "ce-bench.md"


def lines_of(folders: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the page, a section per run."""
    first = folders[0].read_table("results").slice(0, 1).to_pylist()[0]
    plan = PRETRAINED
    yield "# Sparse autoencoders of SmolLM2-135M\n"
    yield "<!-- written by recipes/saes/page.py -->\n"
    yield paragraph(
        f"Autoencoders of `{first['model']}` ({first['model_revision']}), {' and '.join(plan.architectures)} with "
        f"{' and '.join(f'{width:,}' for width in plan.widths)} features, at the output of block {first['layer']}. "
        f"`python -m recipes.saes --model smollm2-135m --dtype bfloat16` trained them on {plan.num_tokens:,} tokens of "
        f"the corpus that ships, for {plan.l0} features per token. Measured by `poolbench-driver run --suite "
        "ce-bench --model smollm2-135m --saes FOLDER` on each set of stories; [the suite](../suites/ce-bench.md) "
        "defines every figure, and `leaderboard` prints those of each subject."
    )
    for folder in folders:
        config = folder.config
        page = SUITES.get("ce-bench").report(folder.tables, config)
        assert page is not None
        assert isinstance(config, CeBenchConfig)
        name, source = _SOURCES[config.stories == "planted"]
        pairs = "all" if config.num_pairs is None else f"at most {config.num_pairs}"
        yield f"\n## {name}\n"
        intro = f"{source} Of each subject {pairs} pairs are read."
        yield paragraph(f"{intro} Configuration {config.config_hash()}, code {first['code_version']}.") + "\n"
        page = replace(page, parts=[part for part in page.parts if part.anchor not in _LEFT_OUT])
        for line in markdown_of(page).splitlines():
            if line.startswith("#"):
                yield f"#{line}"  # one level below the heading of the stories
            elif line and not line.startswith("|"):
                yield paragraph(line, "  " if line.startswith("- ") else "")
            else:
                yield line
    yield ""


def main(runs: Sequence[str]) -> None:
    """Write the page."""
    PAGE.write_text("\n".join(lines_of([Runs(Path("runs")).find(run) for run in runs])), "utf-8")
    print(PAGE)


if __name__ == "__main__":
    main(sys.argv[1:])
