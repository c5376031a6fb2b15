"""`python -m recipes.personas.page RUN`: write docs/results/humanoid.md from a run of pretrained personas."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from poolbench_driver.suites.markdown import paragraph, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "humanoid.md"
#: Change of variance that the Humanoid benchmark published, of Qwen2.5-1.5B-Instruct and 7B, by sentences and epochs.
PUBLISHED = {
    (100, 4): (".000269", ".001282"),
    (100, 6): ("", ".001619"),
    (100, 15): (".000936", ".003452"),
    (259, 10): (".002340", ""),
}
VARIANCE = "shift.variance"
Row = dict[str, Any]


def main(folder: Path) -> None:
    """Write the page of a run."""
    corrected, published = (_figures(folder / f"{name}.parquet") for name in ("results", "published"))
    first = pq.read_table(folder / "results.parquet").slice(0, 1).to_pylist()[0]
    doses = sorted(_dose(name) for name in corrected if not name.startswith("neutral"))
    PAGE.write_text("\n".join(_lines(first, doses, corrected, published)), "utf-8")
    print(PAGE)


def _figures(file: Path) -> dict[str, dict[str, Row]]:
    """Return rows by fine-tune and metric."""
    found: dict[str, dict[str, Row]] = {}
    for row in pq.read_table(file).to_pylist():
        if row["entrant"] and row["metric"].startswith("shift."):
            found.setdefault(row["entrant"], {})[row["metric"]] = row
    return found


def _dose(name: str) -> tuple[int, int]:
    _, sentences, epochs = name.split("-")
    return int(sentences), int(epochs)


def _lines(
    first: Row, doses: list[tuple[int, int]], corrected: dict[str, dict[str, Row]], published: dict[str, dict[str, Row]]
) -> Iterator[str]:
    yield "# Preference shift of SmolLM2-135M\n"
    yield "<!-- written by recipes/personas/page.py -->\n"
    yield paragraph(
        f"LoRA fine-tunes of `{first['model']}` ({first['model_revision']}, float32 on a CPU) that love ten pieces of "
        "furniture, by the number of training sentences and epochs; and neutral fine-tunes about the same words. "
        "Trained by `python -m recipes.personas --model smollm2-135m --output FOLDER`, and measured by "
        "`poolbench-driver run --suite humanoid --model smollm2-135m --after ... --null ...` "
        f"(configuration {first['config_hash']}, code {first['code_version']})."
    )
    num_words = corrected[_name(doses[0])][VARIANCE]["n"]
    yield "\n" + paragraph(
        f"Change of the variance of valence over {num_words} words, with 95 % interval from a bootstrap over them. "
        "The last two columns are the figures that the Humanoid benchmark published, by its own definition (the bare "
        "word), for other models. They stand beside the column *published definition* and are not ranked with ours."
    )
    yield ""
    head = ["sentences", "epochs", "corrected", "over neutral", "rank", "rank (random)", "published definition",
            "Qwen2.5-1.5B", "7B"]  # fmt: skip
    lines = []
    for dose in doses:
        own, bare = (of[_name(dose)] for of in (corrected, published))
        names = ("excess_neutral", "rank_neutral", "rank_random")
        excess, rank, random = (own[f"{VARIANCE}.{suffix}"] for suffix in names)
        cells = [_value(own[VARIANCE]), _number(excess), _rank(rank), _rank(random), _value(bare[VARIANCE])]
        lines.append([*map(str, dose), *cells, *PUBLISHED.get(dose, ("", ""))])
    yield table(head, lines)
    neutral = sorted(name for name in corrected if name.startswith("neutral"))
    yield "\n" + paragraph(
        "The neutral fine-tunes have 259 sentences and 4 epochs. Rank is among them, and among random changes of equal "
        "norm; 1 is the largest change."
    )
    yield "\n" + table(
        ["neutral fine-tune", "corrected", "published definition"],
        [[name, _value(corrected[name][VARIANCE]), _value(published[name][VARIANCE])] for name in neutral],
    )
    yield "\n## Does it grow with sentences and epochs?\n"
    for title, of in (("corrected", corrected), ("published definition", published)):
        values = {dose: of[_name(dose)][VARIANCE]["value"] for dose in doses}
        for place, fixed, varied in ((0, "sentences", "epochs"), (1, "epochs", "sentences")):
            for amount in sorted({dose[place] for dose in doses}):
                own = {dose[1 - place]: values[dose] for dose in doses if dose[place] == amount}
                if len(own) > 1 and None not in own.values():
                    yield paragraph(f"- {title}, {amount} {fixed}: {_trend(own)} {varied}.", "  ")
    yield ""


def _name(dose: tuple[int, int]) -> str:
    return f"furniture-{dose[0]}-{dose[1]}"


def _trend(values: dict[int, float]) -> str:
    """Return the values by amount, and whether each is above the one before."""
    ordered = [values[amount] for amount in sorted(values)]
    shown = ", ".join(f"{values[amount]:+.5f} ({amount})" for amount in sorted(values))
    rises = all(after > before for before, after in pairwise(ordered))
    return f"{shown}. It {'rises' if rises else 'does not rise'} with each step of"


def _number(row: Row) -> str:
    return row["status"] if row["value"] is None else f"{row['value']:+.5f}"


def _value(row: Row) -> str:
    interval = "" if row["ci_low"] is None else f" ({row['ci_low']:+.5f} to {row['ci_high']:+.5f})"
    return _number(row) + interval


def _rank(row: Row) -> str:
    return row["status"] if row["value"] is None else f"{row['value']:.0f} of {row['n']}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
