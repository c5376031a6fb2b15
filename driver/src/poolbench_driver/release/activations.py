"""Write kept or imported states in the layout of the reference project, as `import activations` reads them."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poolbench.concepts import refuse_restricted
from poolbench.errors import NotFoundError
from poolbench.pooling.states import KeptPassage, read_states
from poolbench_corpora.io import CLASSES, CorpusManifest, write_corpus
from poolbench_driver.dataset_folder import write_release
from poolbench_driver.imports.activation_files import passage_entry, write_layer_array
from poolbench_driver.models import model_folder
from poolbench_driver.release.run import passages_source
from poolbench_driver.release.source import Export

KIND = "poolbench-activations"
SPLITS = ("train", "test")
CORPUS = "corpus"
_LEAD = (
    "Hidden states of every token of passages with and without concepts, read from the residual stream of a language "
    "model. Layers count from 0 and mean the output of a block. Sensitive concepts are not part of a release."
)
_READING = """
`{model}/layer_<N>/<concept>_<split>_<class>.npy` is a NumPy object array with one dictionary per passage:

| field | content |
|---|---|
| `id` | id of the passage in `corpus/` |
| `hidden` | states, [T, D]; float16 if the model ran in it, else float32, which holds bfloat16 exactly |
| `offset_mapping` | character range of each token in `text`; (0, 0) for tokens that the tokenizer added |
| `text` | the passage |
| `token_ids` | ids in the model's vocabulary; None if unknown |
| `attn_weights` | None |

An object array is a pickle: reading one runs any code in it. Compare `SHA256SUMS` first (`sha256sum -c`).

```console
$ poolbench-driver import activations . --corpus corpus --name NAME {bos} --trust-pickle
```"""


def export_activations(export: Export, output: Path) -> dict[str, Any]:
    """Write the kept states of a run into `output` and return the manifest. A part is one concept, split and layer.

    All states of a part are in memory at once, because its file is one pickle.

    Raises:
        InputError: `output` holds something else.
        NotFoundError: The run kept no states.
    """
    vectors = export.plan.vectors.concepts
    refuse_restricted("activations", (key for name in export.concepts for key in vectors[name].states.values()))
    if not any(export.artifacts.exists(key) for name in export.concepts for key in vectors[name].states.values()):
        raise NotFoundError(f"run {export.folder.id} kept no states; run its command again with --keep-activations")
    entries: dict[str, dict[str, Any]] = {}
    missing: list[dict[str, str]] = []
    bos = False
    with export.writing(output, KIND) as partial:
        written = []
        for concept in export.concepts:
            refuse_restricted("passages", vectors[concept].passages.values())
            passages = pa.concat_tables([export.artifacts.read_table(vectors[concept].passages[s]) for s in SPLITS])
            written.append(passages)
            for split, layer in product(SPLITS, export.scope.layers_with_steering):
                part_entries, starts_special = _write_part(export, partial, concept, split, layer, passages, missing)
                entries |= part_entries
                bos |= starts_special
                export.on_part(1)
        revision = f"{passages_source(export.scope.config)}-{export.folder.id}"
        manifest = CorpusManifest(revision=revision, tokenizer="unknown", window=(0, 0), recipe=export.command)
        write_corpus(pa.concat_tables(written), partial / CORPUS, manifest)
        return write_release(partial, _card(export, bos), {**export.facts(KIND), "missing": missing}, entries)


def _write_part(
    export: Export,
    partial: Path,
    concept: str,
    split: str,
    layer: int,
    passages: pa.Table,
    missing: list[dict[str, str]],
) -> tuple[dict[str, dict[str, Any]], bool]:
    """Write both classes of one part. Return the entries of its files, and whether position 0 is a special token."""
    rows = [row for row in passages.to_pylist() if row["split"] == split]
    lacking = {"concept": concept, "split": split, "layer": str(layer)}
    try:
        by_passage = _kept(export, export.plan.vectors.concepts[concept].states[split, layer])  # type: ignore[index]
    except NotFoundError as error:
        missing.append({**lacking, "reason": str(error)})
        return {}, False
    for row in rows:
        passage = by_passage.get(row["passage_id"])
        if passage is None or passage.hidden_TD is None:
            reason = str(passage.error) if passage is not None else "no states of it"
            missing.append({**lacking, "passage": row["passage_id"], "reason": reason})
    pairs = [(row, by_passage[row["passage_id"]]) for row in rows if row["passage_id"] in by_passage]
    folder, entries = partial / model_folder(export.scope.model.ref.id), {}
    for name, label in CLASSES.items():
        of_class = [
            passage_entry(row, states)
            for row, states in pairs
            if row["label"] == label and states.hidden_TD is not None
        ]
        file = write_layer_array(folder, layer, concept, split, name, of_class).relative_to(partial)
        entries[file.as_posix()] = {"concept": concept, "split": split, "layer": layer, "num_passages": len(of_class)}
    return entries, any(states.special is not None and bool(states.special[:1].any()) for states in by_passage.values())


def _kept(export: Export, key: str) -> dict[str, KeptPassage]:
    """Return the passages of an artifact of states, with states in the dtype that loses nothing."""
    passages: dict[str, KeptPassage] = {}
    for shard in export.artifacts.read_shards(key):
        half = (shard.schema.metadata or {}).get(b"hidden_dtype") == b"float16"
        for passage in read_states(shard):
            states = passage.hidden_TD.astype(np.float16) if half and passage.hidden_TD is not None else None
            passages[passage.passage_id] = passage if states is None else replace(passage, hidden_TD=states)
    return passages


def _card(export: Export, bos: bool) -> str:
    scope = export.scope
    origin = {"layers": ", ".join(map(str, scope.layers_with_steering)), "concepts": ", ".join(export.concepts)}
    reading = _READING.format(model=model_folder(scope.model.ref.id), bos="--bos" if bos else "--no-bos")
    return export.card("Activations", _LEAD, reading.split("\n"), **origin)
