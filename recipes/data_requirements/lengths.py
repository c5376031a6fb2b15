"""Sentence length in six classes, as SentEval has it: right or wrong answers need labels."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import yaml

from poolbench_corpora.probing import PROBING_SETS

LENGTHS = "sentence-length-classes"
#: Fewest and most words of each class. Conneau et al. (2018), "What you can cram into a single $&!#* vector".
CLASSES = ((5, 8), (9, 12), (13, 16), (17, 20), (21, 25), (26, 28))


def write_lengths(folder: Path) -> Path:
    """Write `ewt-sentence-length` in classes, as many sentences of each, into a folder of probing sets; return it.

    Raises:
        ConfigError: The sets that ship are not on this machine.
    """
    of_values = PROBING_SETS.get("ewt-sentence-length")
    data = PROBING_SETS.read(of_values)
    text_by_id = dict(zip(data.passages["passage_id"].to_pylist(), data.passages["text"].to_pylist(), strict=True))
    rows = [
        {"text": text_by_id[row["first"][0]], "label": label, "group": row["group"]}
        for row in data.instances.to_pylist()
        if (label := class_of(row["value"])) is not None
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pacsv.write_csv(pa.Table.from_pylist(rows), folder / f"{LENGTHS}.csv")
    copied = ("type", "phenomenon", "input", "source", "revision", "licence", "citation", "fidelity", "stands_for")
    definition = {"id": LENGTHS, **of_values.model_dump(include=set(copied), mode="json")}
    definition |= {"balanced": True, "reader": "table", "parameters": {"file": f"{LENGTHS}.csv"}}
    (folder / f"{LENGTHS}.yaml").write_text(yaml.safe_dump(definition, sort_keys=False), "utf-8")
    return folder


def class_of(num_words: float) -> str | None:
    """Return the class of a length; None outside of all."""
    return next((f"{low}-{high}" for low, high in CLASSES if low <= num_words <= high), None)
