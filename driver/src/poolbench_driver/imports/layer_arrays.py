"""Published activations of the reference project: one object array of dictionaries per layer, split and class.

A file is `<model>/layer_<N>/<concept>_<split>_<class>.npy`, and each dictionary has `hidden` [T, D] of one passage. The
passages are in the order of the corpus file of that split and class, unless the dictionaries have an `id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poolbench.errors import InputError
from poolbench_corpora.io import CLASSES
from poolbench_driver.imports.activation_files import ActivationReader, states_of


@dataclass(frozen=True)
class LayerArrays:
    """The files of one concept and split, by layer and label."""

    files: Mapping[int, Mapping[int, Path]]

    @classmethod
    def below(cls, folder: Path, concept: str, split: str, layers: Sequence[int] | None) -> LayerArrays | None:
        """Return the files below a folder, at some layers or all; None if it has no file of this layout.

        Raises:
            InputError: If the files of a layer lie in several places, or one of its classes or a layer is missing.
        """
        every_layer: dict[int, dict[int, Path]] = {}
        for name, label in CLASSES.items():
            for file in sorted(folder.rglob(f"layer_*/{concept}_{split}_{name}.npy")):
                number = file.parent.name.removeprefix("layer_")
                if not number.isdecimal():
                    continue
                other = every_layer.setdefault(int(number), {}).setdefault(label, file)
                if other != file:
                    raise InputError(f"{other} and {file} are of one layer; name the folder of one model")
        if not every_layer:
            return None
        if missing := [layer for layer in layers or () if layer not in every_layer]:
            raise InputError(
                f"{folder} has no layer {missing[0]} of {concept}; it has {', '.join(map(str, every_layer))}"
            )
        files_by_layer = {layer: every_layer[layer] for layer in sorted(layers or every_layer)}
        for layer, files in files_by_layer.items():
            for name, label in CLASSES.items():
                if label not in files:
                    at = next(iter(files.values())).with_name(f"{concept}_{split}_{name}.npy")
                    raise InputError(f"{at} is missing; layer {layer} needs the files of both classes")
        return cls(files_by_layer)

    def paths(self, layer: int) -> list[Path]:
        """Return the files of a layer."""
        return [self.files[layer][label] for label in CLASSES.values()]

    def first(self, rows: Sequence[Mapping[str, Any]], reader: ActivationReader) -> tuple[np.ndarray, bool | None]:
        """Return the states of the first passage, and whether its position 0 is special: (0, 0) in `offset_mapping`."""
        file = self.files[next(iter(self.files))][rows[0]["label"]]
        item = _paired([row for row in rows if row["label"] == rows[0]["label"]], file, reader)[0][1]
        offsets = item.get("offset_mapping")
        special = None if offsets is None or not len(offsets) else tuple(offsets[0]) == (0, 0)
        return states_of(item["hidden"], file), special

    def read(
        self, layer: int, rows: Sequence[Mapping[str, Any]], reader: ActivationReader
    ) -> Iterator[tuple[int, Mapping[str, Any], np.ndarray, Path]]:
        """Yield position, passage, states and file of each passage of a split; one file is in memory at a time."""
        places = {row["passage_id"]: place for place, row in enumerate(rows)}
        for label in CLASSES.values():
            class_rows, file = [row for row in rows if row["label"] == label], self.files[layer][label]
            for row, item in _paired(class_rows, file, reader):
                yield places[row["passage_id"]], row, states_of(item["hidden"], file), file


def _paired(
    rows: Sequence[Mapping[str, Any]], file: Path, reader: ActivationReader
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return passages with their dictionaries; raise InputError if they do not belong together."""
    items = [_checked(item, place, file) for place, item in enumerate(np.atleast_1d(reader.load(file)))]
    if all("id" in item for item in items):
        by_id = {str(item["id"]): item for item in items}
        if lost := [row["passage_id"] for row in rows if row["passage_id"] not in by_id]:
            raise InputError(f"{file} has no passage {lost[0]!r}, which the corpus has")
        pairs = [(row, by_id[row["passage_id"]]) for row in rows]
    elif len(items) != len(rows):
        raise InputError(f"{file} holds {len(items)} passages, the corpus {len(rows)}; both must be of one corpus")
    else:
        pairs = list(zip(rows, items, strict=True))
    for row, item in pairs:
        if isinstance(item.get("text"), str) and item["text"] != row["text"]:
            raise InputError(f"{file}: the text of passage {row['passage_id']!r} is not that of the corpus")
    return pairs


def _checked(item: Any, place: int, file: Path) -> Mapping[str, Any]:
    if not isinstance(item, Mapping) or "hidden" not in item:
        raise InputError(f"{file}: entry {place} is not a dictionary with `hidden`")
    return item
