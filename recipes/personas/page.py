"""`python -m recipes.personas.page RUN [REFERENCE]`: write docs/results/humanoid.md from runs of pretrained personas.

REFERENCE is a run of the same fine-tunes with `--words reference`: its figures stand beside the published ones.
"""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from poolbench_driver.pages.text import paragraph, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "humanoid.md"
#: Change of variance that the Humanoid benchmark published, of Qwen2.5-1.5B-Instruct and 7B, by sentences and epochs.
PUBLISHED = {
    (100, 4): (".000269", ".001282"),
    (100, 6): ("", ".001619"),
    (100, 15): (".000936", ".003452"),
    (259, 10): (".002340", ""),
}
#: What differs between these figures and ours, even with its words and its reading.
DIFFERENCES = (
    "The fine-tunes: adapters on sentences that a grammar wrote here; whole checkpoints on sentences of its own there, "
    "of the same number and epochs.",
    "The model before: that of each fine-tune here. The code there reads the base model `Qwen/Qwen2.5-1.5B` before, "
    "while the slides name the instruction-tuned one.",
    "Precision: float32 before and after here. There, the model after is read as float16 on a GPU.",
)
VARIANCE = "shift.variance"
Row = dict[str, Any]


def main(folder: Path, reference: Path | None = None) -> None:
    """Write the page of a run, and of one with the words of the reference."""
    corrected, published = (_figures(folder / f"{name}.parquet") for name in ("results", "published"))
    with_its_words = None if reference is None else _figures(reference / "published.parquet")
    first = pq.read_table(folder / "results.parquet").slice(0, 1).to_pylist()[0]
    doses = sorted(_dose(name) for name in corrected if not name.startswith("neutral"))
    PAGE.write_text("\n".join(_lines(first, doses, corrected, published, with_its_words)), "utf-8")
    print(PAGE)


def _figures(file: Path) -> dict[str, dict[str, Row]]:
    """Return rows by fine-tune and metric."""
    figures: dict[str, dict[str, Row]] = {}
    for row in pq.read_table(file).to_pylist():
        if row["entrant"] and row["metric"].startswith("shift."):
            figures.setdefault(row["entrant"], {})[row["metric"]] = row
    return figures


def _dose(name: str) -> tuple[int, int]:
    _, sentences, epochs = name.split("-")
    return int(sentences), int(epochs)


def _lines(
    first: Row,
    doses: list[tuple[int, int]],
    corrected: dict[str, dict[str, Row]],
    published: dict[str, dict[str, Row]],
    with_its_words: dict[str, dict[str, Row]] | None,
) -> Iterator[str]:
    yield "# Preference shift of SmolLM2-135M\n"
    yield "<!-- written by recipes/personas/page.py -->\n"
    yield paragraph(
        f"LoRA fine-tunes of `{first['model']}` ({first['model_revision']}, float32 on a CPU) that love ten pieces of "
        "furniture, by the number of training sentences and epochs; and neutral fine-tunes about the same words. "
        "Trained by `python -m recipes.personas --model smollm2-135m --output FOLDER`, and measured by "
        "`poolbench-driver run --suite humanoid --model smollm2-135m --after FOLDER --null FOLDER` "
        f"(configuration {first['config_hash']}, code {first['code_version']})."
    )
    num_words = corrected[_name(doses[0])][VARIANCE]["n"]
    yield "\n" + paragraph(
        f"Change of the variance of valence over {num_words} words, with 95 % interval from a bootstrap over them. "
        "*Published definition* is that of the Humanoid benchmark, the bare word, with our words."
    )
    yield ""
    head = ["sentences", "epochs", "corrected", "over neutral", "rank", "rank (random)", "published definition"]
    lines = []
    for dose in doses:
        figures, bare = (of[_name(dose)] for of in (corrected, published))
        names = ("excess_neutral", "rank_neutral", "rank_random")
        excess, rank, random = (figures[f"{VARIANCE}.{suffix}"] for suffix in names)
        cells = [_value(figures[VARIANCE]), _number(excess), _rank(rank), _rank(random), _value(bare[VARIANCE])]
        lines.append([*map(str, dose), *cells])
    yield table(head, lines)
    values = {dose: corrected[_name(dose)][VARIANCE]["value"] for dose in doses}
    yield "\n" + paragraph(
        f"The neutral fine-tunes have 259 sentences and 4 epochs: {_range(corrected)} corrected, {_range(published)} "
        "by the published definition. Rank is among them, and among random changes of equal norm; 1 is the largest "
        f"change. The corrected change rises with each step of epochs {rising(values, 0)} numbers of sentences, and "
        f"with each step of sentences {rising(values, 1)} numbers of epochs."
    )
    yield from beside_published(with_its_words)
    yield ""


def beside_published(with_its_words: dict[str, dict[str, Row]] | None) -> Iterator[str]:
    """Yield the published figures, those of our fine-tunes with the words of the benchmark, and what still differs.

    Without a run of its words no figure of ours stands beside them.
    """
    yield "\n## Beside the published figures\n"
    yield paragraph(
        "The Humanoid benchmark published the change of variance of two other models, over its own 18 words of "
        "furniture, 5 liked and 5 disliked ones. `--words reference` measures with these words, and its figures by "
        "the published definition are comparable in words and reading. Figures with other words are not."
    )
    ours = with_its_words or {}
    head = ["sentences", "epochs", *(["SmolLM2-135M, its words"] if ours else []), "Qwen2.5-1.5B", "7B"]
    doses = [dose for dose in PUBLISHED if not ours or _name(dose) in ours]
    yield "\n" + table(
        head,
        [
            [*map(str, dose), *([_value(ours[_name(dose)][VARIANCE])] if ours else []), *PUBLISHED[dose]]
            for dose in doses
        ],
    )
    yield "\nWhat still differs:\n"
    for difference in DIFFERENCES:
        yield paragraph(f"- {difference}", "  ")


def _name(dose: tuple[int, int]) -> str:
    return f"furniture-{dose[0]}-{dose[1]}"


def rising(values: dict[tuple[int, int], float | None], place: int) -> str:
    """Return at how many amounts of `place` the value rises with each step of the other one."""
    amounts = {dose[place] for dose in values}
    series = [[values[dose] for dose in sorted(values) if dose[place] == amount] for amount in amounts]
    whole = [steps for steps in series if len(steps) > 1 and None not in steps]
    return f"at {sum(all(after > before for before, after in pairwise(steps)) for steps in whole)} of {len(whole)}"


def _range(figures: dict[str, dict[str, Row]]) -> str:
    """Return the smallest and the largest value of the neutral fine-tunes."""
    values = [row[VARIANCE]["value"] for name, row in figures.items() if name.startswith("neutral")]
    measured = [value for value in values if value is not None]
    return f"{min(measured):+.5f} to {max(measured):+.5f}" if measured else "none"


def _number(row: Row) -> str:
    return row["status"] if row["value"] is None else f"{row['value']:+.5f}"


def _value(row: Row) -> str:
    interval = "" if row["ci_low"] is None else f" ({row['ci_low']:+.5f} to {row['ci_high']:+.5f})"
    return _number(row) + interval


def _rank(row: Row) -> str:
    return row["status"] if row["value"] is None else f"{row['value']:.0f} of {row['n']}"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
