"""What makes a corpus folder a dataset: a card, Croissant metadata and checksums."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import typer

from poolbench import __version__
from poolbench.concepts import CONCEPTS
from poolbench.config import BUDGETS
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench.library.concepts import own_passages
from poolbench_corpora.folders.importing import importable_concepts, writable_concepts
from poolbench_corpora.io import (
    CORPUS_SPLITS,
    MANIFEST_NAME,
    CorpusManifest,
    read_credited,
    read_manifest,
    window_of,
    write_corpus,
)
from poolbench_corpora.planted import build_planted, planted_concepts, planted_revision
from poolbench_driver.dataset_folder import (
    CARD,
    CROISSANT,
    RecordFields,
    croissant,
    hub_header,
    render_card,
    replacing,
    require_same,
    sha256_of,
    write_checksums,
)

FIELDS: RecordFields = {
    "id": ("sc:Text", "id of the passage, unique in its concept"),
    "text": ("sc:Text", "the passage"),
    "label": ("sc:Integer", "1 if it expresses the concept, 0 if not"),
    "domain": ("sc:Text", "kind of text"),
    "token_count": ("sc:Integer", "length in tokens of the tokenizer that the manifest names"),
    "matched_pair_id": ("sc:Text", "the same for a positive and the negative made of it; null without pairs"),
    "split": ("sc:Text", "train, test or scorer"),
    "doc_id": ("sc:Text", "source document; all passages of one are in one split"),
    "source": ("sc:Text", "where the text comes from"),
    "licence": ("sc:Text", "licence of the text"),
    "attribution": ("sc:Text", "whom to credit: author or publisher, and work"),
}


def export_folder(source: Path, output: Path, concepts: str | None) -> None:
    """Copy a corpus folder into the published layout, with card, metadata and checksums.

    Raises:
        ConfigError: Both are the same folder.
        InputError: `output` holds anything but an earlier export of this corpus.
        RestrictedError: A sensitive concept is named.
    """
    if source.resolve() == output.resolve():
        raise ConfigError(f"{output} is the corpus itself; name another folder to export to")
    names = importable_concepts(source, concepts)
    passages = read_credited(source, names)
    manifest = read_manifest(source) or CorpusManifest(revision="unknown", tokenizer="unknown", window=(0, 0))
    _write(passages, output, manifest)


def export_planted(output: Path, concepts: str | None, budget: str, seed: int) -> None:
    """Write planted passages, and passages of the user's own concepts, in the published layout. See `export_folder`.

    Raises:
        UnknownNameError: No such budget or concept.
        InputError: `output` holds anything but an earlier export of planted passages.
        RestrictedError: A sensitive concept is named.
    """
    if budget not in BUDGETS:
        raise UnknownNameError("budget", budget, BUDGETS)
    sizes = {f"num_{split}": getattr(BUDGETS[budget], f"num_{split}") for split in CORPUS_SPLITS}
    exported = [CONCEPTS.get(name) for name in writable_concepts(concepts)]
    passages = pa.concat_tables(
        own_passages(concept) if concept.corpus else build_planted(concept.id, seed=seed, **sizes)
        for concept in exported
    )
    manifest = CorpusManifest(
        revision=planted_revision(planted_concepts()),
        tokenizer="words",
        window=window_of([passages]),
        recipe=f"poolbench-driver corpus export --budget {budget} --seed {seed}",
    )
    _write(passages, output, manifest)


def _write(passages: pa.Table, output: Path, manifest: CorpusManifest) -> None:
    require_same(output, {"revision": manifest.revision}, mark=CROISSANT)
    with replacing(output.resolve()) as partial:
        write_corpus(passages, partial, manifest)
        describe(partial, passages, manifest)
    typer.echo(f"{passages.num_rows} passages of {len(pc.unique(passages['concept']))} concepts written to {output}")


def describe(folder: Path, passages: pa.Table, manifest: CorpusManifest) -> None:
    """Write card, Croissant metadata and checksums beside the JSONL files of PASSAGES.

    Equal corpora give equal files. Raise CorpusError if the folder holds no such files.
    """
    concepts = sorted(set(passages["concept"].to_pylist()))
    files = [path for name in concepts for path in sorted((folder / name).glob("*.jsonl"))]
    if not files:
        raise CorpusError(f"{folder} holds no corpus of {', '.join(concepts)}")
    sums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    licences = sorted({licence or "unknown" for licence in passages["licence"].to_pylist()})
    written = {
        CARD: _card(passages, manifest, licences),
        CROISSANT: croissant(
            "poolbench-corpus",
            "Passages with and without concepts, to probe the hidden states of language models.",
            licences,
            f"1.0.0+{_plain(manifest.revision)}",
            {name: (digest, _fields(passages)) for name, digest in sums.items()},
        ),
    }
    for name, content in written.items():
        (folder / name).write_text(content, "utf-8")
        sums[name] = sha256_of(folder / name)
    sums[MANIFEST_NAME] = sha256_of(folder / MANIFEST_NAME)
    write_checksums(folder, sums)


def _fields(passages: pa.Table) -> RecordFields:
    return {name: field for name, field in FIELDS.items() if name != "attribution" or name in passages.column_names}


def _plain(revision: str) -> str:
    """Return a revision as the build part of a semantic version."""
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in revision)


def _card(passages: pa.Table, manifest: CorpusManifest, licences: Sequence[str]) -> str:
    lead = (
        "Passages with and without concepts, to probe the hidden states of language models. Sensitive concepts are "
        "not part of an export."
    )
    facts = {
        "revision": manifest.revision,
        "tokens counted by": manifest.tokenizer,
        "made by": f"`{manifest.recipe or 'unknown'}`",
        "exported by": f"PoolBench {__version__}, `poolbench-driver corpus export`",
        "licences": ", ".join(licences),
    }
    splits = f"| concept | {' | '.join(CORPUS_SPLITS)} | sources |"
    fields = (f"| `{name}` | {description} |" for name, (_, description) in _fields(passages).items())
    sections = [
        *("", "## Passages (positive / negative)", "", splits, f"|---|{'---|' * (len(CORPUS_SPLITS) + 1)}"),
        *_sizes(passages),
        *("", "## Fields", "", "| field | content |", "|---|---|", *fields),
    ]
    return render_card(_header(passages, licences), "PoolBench corpus", lead, facts, sections)


def _header(passages: pa.Table, licences: Sequence[str]) -> list[str]:
    """Return the header that dataset hubs read."""
    of_all = licences[0].lower() if len(licences) == 1 else "other"
    lines = [*hub_header(of_all), "configs:"]
    for concept in sorted(set(passages["concept"].to_pylist())):
        lines += [f"- config_name: {concept}", "  data_files:"]
        concept_passages = passages.filter(pc.equal(passages["concept"], concept))
        splits = set(concept_passages["split"].to_pylist())
        for split in (split for split in CORPUS_SPLITS if split in splits):
            lines += [f"  - split: {split}", f"    path: {concept}/{split}_*.jsonl"]
    return lines


def _sizes(passages: pa.Table) -> Iterable[str]:
    rows = passages.select(["concept", "split", "label", "source"]).to_pylist()
    counts = Counter((row["concept"], row["split"], row["label"]) for row in rows)
    for concept in sorted({row["concept"] for row in rows}):
        sizes = [f"{counts[concept, split, 1]} / {counts[concept, split, 0]}" for split in CORPUS_SPLITS]
        sources = ", ".join(sorted({row["source"] or "unknown" for row in rows if row["concept"] == concept}))
        name = CONCEPTS.get(concept).summary.rstrip(".")
        yield f"| {concept}: {name} | {' | '.join(sizes)} | {sources} |"
