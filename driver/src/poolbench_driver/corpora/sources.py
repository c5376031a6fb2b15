"""Sources of passages (grammar, real text, a folder) and of probing sets, and the local steps that store them."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS, Concept
from poolbench.config import REAL_CORPUS
from poolbench.config.contents import FileState, file_state
from poolbench.contracts.keys import digest
from poolbench.contracts.tables import CHAT_PROMPTS
from poolbench.errors import ConfigError, CorpusError, PoolbenchError
from poolbench.library.concepts import own_passages
from poolbench.statistics.response import split_openings
from poolbench.steps.local import PASSAGES, PROMPTS, TABLE, PassagesParams, PromptsParams
from poolbench.texts import CALIBRATION_SET, load_calibration, load_openings
from poolbench.word_rules import seed_pattern
from poolbench_corpora.io import (
    audited_concepts,
    concept_folder,
    folder_digest,
    folder_files,
    has_scorer_texts,
    read_concept,
)
from poolbench_corpora.near import INFERENCE_VERSION
from poolbench_corpora.partition import PARTITION_VERSION
from poolbench_corpora.planted import build_planted, planted_revision
from poolbench_corpora.probing import ProbingSet, ProbingSets, shipped_folders
from poolbench_driver.config import NAMED_SOURCES, ConceptsConfig, CorpusConfig, corpus_folder


def chosen_sets(patterns: Sequence[str], source: str) -> tuple[ProbingSets, list[ProbingSet]]:
    """Return the catalogue of a corpus, and its sets whose ids match; without patterns, all of them.

    Args:
        patterns: Ids, or patterns such as `blimp-*`.
        source: The corpus: planted, real or a folder of definitions.

    Raises:
        UnknownNameError: A pattern fits no known set.
        CorpusError: The corpus has none of the sets, or the sets that ship are not here.
    """
    if source == "real":
        _require_shipped()
    folder = None if source in NAMED_SOURCES else Path(source)
    catalogue = ProbingSets(*([] if folder is None else [folder]))
    candidates = catalogue.choose(patterns) if patterns else catalogue.all()
    if folder is not None:
        probing_sets = [candidate for candidate in candidates if candidate.folder == folder]
    else:
        probing_sets = [
            candidate for candidate in candidates if (candidate.fidelity == "planted") is (source == "planted")
        ]
    if not probing_sets and patterns:
        raise CorpusError(
            f"--sets {','.join(patterns)}: no such set in corpus {source}; name another corpus (--corpus planted, "
            "real or a folder), or sets of this one (poolbench-driver ls probing-sets)"
        )
    return catalogue, probing_sets


def _require_shipped() -> None:
    try:
        shipped_folders()
    except PoolbenchError as error:
        raise CorpusError(f"the sets of corpus real are not here, and --corpus planted needs none: {error}") from None


#: The source of a planted passage as a corpus file has it; inside a text its quotes would be escaped.
_PLANTED = re.compile(rb'"source":\s*"planted-')
#: A document that is named.
_DOCUMENT = re.compile(rb'"doc_id":\s*"')
#: The source of passages that a concept brings.
OWN = "own"


def concept_identity(config: ConceptsConfig, concept: Concept) -> dict[str, Any]:
    """Return source and revision of a concept's passages for artifact keys."""
    if concept.corpus:
        return {"source": OWN, "partition": 0, "revision": concept.corpus}
    return dataset_identity(config, [concept])


def run_dataset(config: ConceptsConfig, concepts: Sequence[Concept]) -> dict[str, Any]:
    """Return source and revision of a run's passages, and the mask of seed words if any, for result rows."""
    mask = config.corpus.mask
    return _dataset(config, concepts) | ({} if mask is None else {"mask": mask})


def _dataset(config: ConceptsConfig, concepts: Sequence[Concept]) -> dict[str, Any]:
    revision_by_concept = {concept.id: concept.corpus for concept in concepts if concept.corpus}
    if not revision_by_concept:
        return _shared_dataset(config, concepts)
    revision = ", ".join(f"{name} {corpus}" for name, corpus in sorted(revision_by_concept.items()))
    if len(revision_by_concept) == len(concepts):
        return {"source": OWN, "revision": revision}
    shared = _shared_dataset(config, [concept for concept in concepts if not concept.corpus])
    return shared | {"source": f"{shared['source']}+{OWN}", "revision": f"{shared['revision']}, {revision}"}


def _shared_dataset(config: ConceptsConfig, concepts: Iterable[Concept]) -> dict[str, Any]:
    """Return the name and revision of a run's corpus for result rows.

    Keys of steps do not depend on the name, because a copy of a corpus has the same passages. The corpus that ships
    with PoolBench is named after its asset, because `real` in rows of earlier runs means text cut from archives.
    """
    name = {"source": REAL_CORPUS} if config.corpus.source == "real" else {}
    return dataset_identity(config, concepts) | name


def require_one_kind(config: ConceptsConfig, concepts: Sequence[Concept]) -> None:
    """Raise ConfigError for a run of planted concepts and a user's own: they are never ranked together."""
    user_concepts = [concept.id for concept in concepts if concept.corpus]
    if user_concepts and len(user_concepts) < len(concepts) and config.corpus.source == "planted":
        others = ", ".join(concept.id for concept in concepts if not concept.corpus)
        raise ConfigError(
            f"{', '.join(user_concepts)} would be ranked with planted passages of {others}, which are diagnostics: "
            "measure them in two runs, or name a corpus for the others (--corpus real, or a folder)"
        )


def dataset_identity(config: ConceptsConfig, concepts: Iterable[Concept] = ()) -> dict[str, Any]:
    """Return source and revision of the corpus that a run names, as far as these concepts use it."""
    corpus = config.corpus
    if corpus.source != "planted":
        if corpus.window or corpus.seed:
            raise ConfigError(
                f"corpus.window and corpus.seed are for planted passages, and the texts of {corpus.source} are read as "
                "they are; leave them out"
            )
        facts = folder_facts(corpus_folder(corpus.source))
        inferred = {"inference": INFERENCE_VERSION} if facts.lacks_documents else {}
        return {"source": facts.origin, "revision": facts.revision} | inferred
    return {
        "source": corpus.source,
        "partition": PARTITION_VERSION,
        "revision": planted_revision(concept.id for concept in concepts),
        "window": list(corpus.window) if corpus.window else None,
        "seed": corpus.seed,
    }


def split_sizes(config: ConceptsConfig) -> dict[str, int]:
    """Return the budget's passages of each split, as `num_<split>`."""
    budget = config.budget
    return {"num_train": budget.num_train, "num_test": budget.num_test, "num_scorer": budget.num_scorer}


def dataset_revision(identity: Mapping[str, Any]) -> str:
    """Return the revision in result rows: other passages, by window or seed, are another dataset."""
    parts = [str(identity["revision"])]
    if identity.get("window"):
        parts.append("window " + "-".join(map(str, identity["window"])))
    if identity.get("seed"):
        parts.append(f"seed {identity['seed']}")
    if "mask" in identity:
        parts.append(f"seed words {identity['mask'] or 'left out'}")
    return ", ".join(parts)


def all_concepts(source: str) -> list[str]:
    """Return the concepts that a run of `all` measures. On real text, these are concepts that pass the audit."""
    concepts = CONCEPTS.all()
    if source == "real":
        audited = audited_concepts(corpus_folder(source))
        concepts = [concept for concept in concepts if concept.corpus or concept.id in audited]
    return [concept.id for concept in concepts]


def absent_concepts(config: ConceptsConfig, names: Sequence[str], *, beside_own: bool = False) -> dict[str, str]:
    """Return the neighbours that have no passages, with the reason.

    Beside concepts of the user (`beside_own`), planted passages of a neighbour do not count, because a scorer trained
    on planted passages would judge real texts.
    """
    source = config.corpus.source
    concepts = [name for name in names if not CONCEPTS.get(name).corpus]
    if source == "planted" and beside_own:
        return dict.fromkeys(concepts, "it has planted passages only; name a corpus of it (--corpus real, or a folder)")
    if source == "planted":
        return {}
    folder = corpus_folder(source)
    return {n: f"{source} has no corpus of {n}" for n in concepts if not concept_folder(folder, n).is_dir()}


def concept_table(config: ConceptsConfig, name: str) -> pa.Table:
    """Return all splits of one concept. The table is cached, because several local steps use it."""
    source = config.corpus.source
    return _concept_table(config, name, "" if source == "planted" else folder_facts(corpus_folder(source)).revision)


@lru_cache(maxsize=32)
def _concept_table(config: ConceptsConfig, name: str, _revision: str) -> pa.Table:
    corpus, concept = config.corpus, CONCEPTS.get(name)
    if concept.corpus:
        return own_passages(concept)
    if corpus.source != "planted":
        return read_concept(corpus_folder(corpus.source), name)
    settings: dict[str, Any] = {**split_sizes(config), "seed": corpus.seed}
    if corpus.window:
        settings["window"] = corpus.window
    return build_planted(name, **settings)


@dataclass(frozen=True)
class FolderFacts:
    """Facts about the passages of a folder."""

    revision: str  # hash of its files
    origin: str  # `planted` where the grammar made them, else `folder`
    lacks_documents: bool  # whether some name no document, so that it is inferred


def folder_facts(folder: Path) -> FolderFacts:
    """Return the revision of a folder, the origin of its passages, and whether the passages name their documents.

    Files are read once, and again if a file has changed.

    Raises:
        CorpusError: Only some passages are planted. A run ranks all together, and planted passages are diagnostics.
    """
    return _facts(folder, tuple((file, file_state(file)) for file in folder_files(folder)))


@lru_cache(maxsize=32)
def _facts(folder: Path, _files: tuple[tuple[Path, FileState], ...]) -> FolderFacts:
    counts: Counter[str] = Counter()

    def look(content: bytes) -> None:
        if content.startswith(b"PAR1"):  # of a table, every passage names its document, and none is planted
            return
        counts["records"] += sum(1 for line in content.split(b"\n") if line.strip())
        counts["planted"] += len(_PLANTED.findall(content))
        counts["documents"] += len(_DOCUMENT.findall(content))

    revision = folder_digest(folder, look)
    if 0 < counts["planted"] < counts["records"]:
        mixed = f"{counts['planted']} of {counts['records']} passages are planted"
        raise CorpusError(
            f"corpus {folder}: {mixed}; they are never ranked with real ones, give them a folder of their own"
        )
    origin = "planted" if counts["planted"] else "folder"
    return FolderFacts(revision, origin, counts["documents"] < counts["records"])


@dataclass(frozen=True)
class LocalStep:
    """An artifact that the driver builds itself: its key, and the function that builds its table or files by name."""

    key: str
    label: str
    build: Callable[[], pa.Table | dict[str, bytes]]
    count: Callable[[], int] = lambda: 0  # how many rows it has, for estimates; 0 where they are not known before


def stored_rows(label: str, table: pa.Table, what: str) -> LocalStep:
    """Return the step that stores a table under a hash of its rows. `what` describes the rows in the key."""
    params = PassagesParams(concept=what, split=what, rows=digest(table.to_pylist(), 16))
    return LocalStep(PASSAGES.key(TABLE(), params, {}), label, lambda: table, lambda: table.num_rows)


def passages_step(config: ConceptsConfig, concept: Concept, split: str) -> LocalStep:
    """Return the step that stores the passages of one concept and split."""
    sizes, source = split_sizes(config), config
    if split == "scorer" and (other := other_scorer_texts(config, concept)):
        source = config.model_copy(update={"corpus": CorpusConfig(source=other)})
    identity = {"concept": concept.id, "split": split, **sizes, **concept_identity(source, concept)}
    mask = config.corpus.mask if split != "scorer" and concept.seed_words else None
    params = PassagesParams.model_validate(identity | ({} if mask is None else {"mask": mask}))
    key = PASSAGES.key(TABLE(), params, {}, restricted=concept.sensitive)

    def build() -> pa.Table:
        table = concept_table(source, concept.id)
        if source is not config:
            texts = table.filter(pc.equal(table["split"], "scorer"))["text"]
            if shared := pc.sum(pc.is_in(texts, value_set=concept_table(config, concept.id)["text"])).as_py():
                raise CorpusError(
                    f"{shared} scorer texts of {concept.id} are passages of its corpus too; name another source"
                )
        passages = at_most(table.filter(pc.equal(table["split"], split)), sizes[f"num_{split}"])
        return passages if mask is None else masked(passages, concept, mask)

    def count() -> int:
        """Return the number of passages. For planted text, the budget sets this number."""
        if source.corpus.source == "planted" and not concept.corpus:
            return sizes[f"num_{split}"]
        try:
            return build().num_rows
        except CorpusError:  # a dry run names what is missing, and counts as if it were there
            return sizes[f"num_{split}"]

    return LocalStep(key, f"passages {concept.id}/{split}", build, cache(count))


def require_seed_words(config: ConceptsConfig, concepts: Sequence[Concept]) -> None:
    """Raise ConfigError if seed words are masked but a concept has none, so that its passages would stay unmasked."""
    if config.corpus.mask is not None and (without := [concept.id for concept in concepts if not concept.seed_words]):
        with_some = ", ".join(concept.id for concept in CONCEPTS.all() if concept.seed_words)
        raise ConfigError(f"corpus.mask: no seed words of {', '.join(without)} are known; those with some: {with_some}")


def masked(passages: pa.Table, concept: Concept, mask: str) -> pa.Table:
    """Return passages with `mask` in place of each seed word or phrase of the concept. Case is ignored."""
    pattern = seed_pattern(concept)
    texts = [pattern.sub(lambda _: mask, text) for text in passages["text"].to_pylist()]
    return passages.set_column(passages.schema.get_field_index("text"), "text", pa.array(texts))


def other_scorer_texts(config: ConceptsConfig, concept: Concept) -> str | None:
    """Return the source of a concept's scorer texts if they are not in its corpus folder, else None."""
    corpus = config.corpus
    if corpus.source == "planted" or concept.corpus:
        return None
    return None if has_scorer_texts(corpus_folder(corpus.source), concept.id) else corpus.scorer_texts


def at_most(passages: pa.Table, size: int) -> pa.Table:
    """Return at most `size` passages, half of each class, with whole pairs. The choice depends on their ids alone."""
    if passages.num_rows <= size:
        return passages
    rows = passages.select(["passage_id", "pair_id", "label"]).to_pylist()
    names = [row["pair_id"] or row["passage_id"] for row in rows]
    ranks = [hashlib.sha256(f"at-most:{name}".encode()).hexdigest() for name in names]
    order = sorted(range(len(rows)), key=lambda i: (ranks[i], i))
    row_numbers: list[int] = []
    for label in (0, 1):
        row_numbers += [i for i in order if rows[i]["label"] == label][: size // 2]
    return passages.take(sorted(row_numbers))


def openings_step(name: str, count: int, half: int | None = None, seed: int = 0) -> LocalStep:
    """Return the step that stores the first `count` openings of a named set, or one half of these, split by a seed.

    Raise UnknownNameError if there is no such set, CorpusError if the set has fewer openings.
    """
    params, table = PromptsParams(openings=name, count=count), load_openings(name, count)
    if half is not None:
        params = PromptsParams(openings=name, count=count, half=half, split_seed=seed)
        of_half = split_openings(table["prompt_id"].to_pylist(), seed)[half]
        table = table.filter(pc.is_in(table["prompt_id"], pa.array(of_half, pa.string())))
    key = PROMPTS.key(TABLE(), params, {})
    return LocalStep(key, f"openings {name}", lambda: table, lambda: table.num_rows)


#: What a chat model is asked for beside the instruction of a concept.
REPLY = "Write a paragraph of plain text. Begin with the words that are given, and go on from there."


def prompted_step(name: str, count: int, concept: Concept | None) -> LocalStep:
    """Return the step that stores openings with an instruction to continue them. A given concept is described too."""
    instruction = REPLY
    if concept is not None:
        instruction += f" {concept.instruction or f'It should fit this description: {concept.definition}'}"
    params = PromptsParams(openings=name, count=count, instruction=instruction)
    key = PROMPTS.key(TABLE(), params, {}, restricted=concept is not None and concept.sensitive)
    table = load_openings(name, count)
    table = table.append_column("instruction", pa.array([instruction] * table.num_rows)).cast(CHAT_PROMPTS)
    label = f"instructions {name}" if concept is None else f"instructions {name}, {concept.id}"
    return LocalStep(key, label, lambda: table, lambda: table.num_rows)


def calibration_step() -> LocalStep:
    """Return the fixed texts whose residual norm is the unit of strength."""
    key = PROMPTS.key(TABLE(), PromptsParams(calibration=CALIBRATION_SET), {})
    return LocalStep(key, f"calibration texts {CALIBRATION_SET}", load_calibration, lambda: load_calibration().num_rows)
