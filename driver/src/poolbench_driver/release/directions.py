"""Write the concept directions of a run in the published layout: `<model>/layer_<N>/<concept>__<strategy>.npy`.

Such a file holds the unit vector of the run's steering direction, float32 [D]. `directions.safetensors` beside them
holds the vectors of all construction methods, as `<concept>/<strategy>/<construction>`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

from poolbench.concepts import refuse_restricted
from poolbench.errors import NotFoundError, RestrictedError
from poolbench.statuses import Status
from poolbench.steps.roles import Cell
from poolbench_driver.dataset_folder import write_release
from poolbench_driver.models import model_folder
from poolbench_driver.release.source import Export

KIND = "poolbench-directions"
INDEX, TENSORS = "directions.parquet", "directions.safetensors"

#: One row per direction; `file` is null where there is no vector, and for methods that only the safetensors hold.
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("concept", "strategy")),
        ("layer", pa.int32()),
        ("direction", pa.string()),
        ("raw_norm", pa.float64()),
        *((name, pa.string()) for name in ("status", "reason", "file", "tensors")),
    ]
)
_LEAD = (
    "Directions of concepts in the residual stream of a language model, one for each concept, pooling strategy, layer "
    "and construction method. All are unit vectors; `raw_norm` is their length before. Layers count from 0 and mean "
    "the output of a block. Directions that were made from passages of sensitive concepts are not part of a release."
)
_READING = """
```python
import numpy as np
from safetensors.numpy import load_file

vector = np.load("{folder}/{example}.npy")  # {direction}, float32 [{width}]
all_methods = load_file("{folder}/directions.safetensors")  # "concept/strategy/C1" and so on
```

`directions.parquet` lists all directions, with status and reason of those that could not be made."""


def export_directions(export: Export, output: Path) -> dict[str, Any]:
    """Write the directions of a run into `output` and return the manifest. A part is one concept and layer.

    Raises:
        InputError: `output` holds something else.
        NotFoundError: The store has none of the run's directions.
    """
    scope, rows, missing = export.scope, list[dict[str, Any]](), list[dict[str, str]]()
    with export.writing(output, KIND) as partial:
        for layer in scope.layers_with_steering:
            folder = f"{model_folder(scope.model.ref.id)}/layer_{layer}"
            (partial / folder).mkdir(parents=True)
            tensors: dict[str, np.ndarray] = {}
            for concept in export.concepts:
                for row in _rows(export, concept, layer, missing):
                    rows.append(_write(partial, folder, row, scope.config.steering.direction, tensors))
                export.on_part(1)
            save_file(tensors, partial / folder / TENSORS)
        example = next((row["file"] for row in rows if row["file"]), None)
        if example is None:
            raise NotFoundError(f"run {export.folder.id} has no direction in the store; run its command again")
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), partial / INDEX, compression="zstd")
        facts = {**export.facts(KIND), "num_directions": len(rows), "missing": missing}
        return write_release(partial, _card(export, example), facts, {INDEX: {"num_rows": len(rows)}})


def _rows(export: Export, concept: str, layer: int, missing: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield the directions of a concept at a layer. Restricted and absent directions are added to `missing`."""
    keys = export.plan.probes.concepts[concept].directions
    for spec in export.scope.strategies:
        key = keys[Cell(spec.id, layer)]
        lacking = {"concept": concept, "strategy": spec.id, "layer": str(layer)}
        try:
            refuse_restricted(f"the direction of {spec.id}", [key])
            table = export.artifacts.read_table(key)
        except (NotFoundError, RestrictedError) as error:
            missing.append({**lacking, "reason": str(error)})
            continue
        for row in table.to_pylist():
            yield {"concept": concept, "strategy": spec.id, "layer": layer, **row}


def _write(
    partial: Path, folder: str, row: dict[str, Any], steering: str, tensors: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Write one direction. Return its row of the index."""
    entry: dict[str, str | None] = {"direction": row["direction_id"], "file": None, "tensors": None}
    entry["status"] = row["status"] or Status.OK
    if row["vector"] is not None:
        vector = np.asarray(row["vector"], np.float32)
        tensors[f"{row['concept']}/{row['strategy']}/{row['direction_id']}"] = vector
        entry["tensors"] = f"{folder}/{TENSORS}"
        if row["direction_id"] == steering:
            entry["file"] = f"{folder}/{row['concept']}__{row['strategy']}.npy"
            np.save(partial / str(entry["file"]), vector)
    return {**{name: row.get(name) for name in SCHEMA.names}, **entry}


def _card(export: Export, example: str) -> str:
    scope = export.scope
    folder, _, name = example.rpartition("/")
    direction = scope.config.steering.direction
    origin = {
        "layers": ", ".join(map(str, scope.layers_with_steering)),
        "concepts": ", ".join(export.concepts),
        "strategies": ", ".join(spec.id for spec in scope.strategies),
        "files `.npy`": f"construction {direction}",
    }
    reading = _READING.format(
        folder=folder, example=name.removesuffix(".npy"), direction=direction, width=scope.model.width
    )
    return export.card("Concept directions", _LEAD, reading.split("\n"), **origin)
