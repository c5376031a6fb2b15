"""Build the corpora of several concepts from the archives or the hub, one at a time."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa
from recipes.passages.build import build_real, real_revision
from recipes.passages.documents import archives_folder, require_sources
from recipes.passages.hub import HUB_REVISION, build_hub, reader_of
from recipes.passages.rewriting import REWRITERS_REVISION
from recipes.passages.selection import few_domains
from recipes.passages.tokens import CARD_TOKENIZER, WORDS, token_counter
from recipes.passages.yields import Yield

from poolbench.concepts import CONCEPTS, withheld
from poolbench.config import BUDGETS
from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.io import (
    CORPUS_SPLITS,
    CorpusManifest,
    joined_manifest,
    read_manifest,
    window_of,
    write_at_once,
    write_corpus,
    write_manifest,
)

SOURCES = ("archives", "hf", "local:PATH")
LOCAL = "local:"


@dataclass(frozen=True)
class BuildOptions:
    """What can be said about a build beside source, budget and seed."""

    tokenizer: str | None = None  # null: `words`, and for datasets the card's
    leave_out: frozenset[str] = frozenset()  # datasets that are not read
    unknown_licences: bool = False  # whether datasets without a known licence are read
    window: tuple[int, int] | None = None  # smallest and largest number of tokens; null: the source's own


@dataclass(frozen=True)
class Maker:
    """Makes concepts from one source."""

    revision: str
    tokenizer: str
    recipe: str
    identity: tuple[str, ...]  # what tells this build from others, for the folder of its finished concepts
    table: Callable[[str, Yield], pa.Table]

    @classmethod
    def of(cls, source: str, budget: str, seed: int, options: BuildOptions) -> Maker:
        """Return the maker of a source.

        Raises:
            UnknownNameError: No such budget or source.
            ConfigError: An option that the source does not take, or a tokenizer or library that cannot be had.
            CorpusError: No folder with copies of datasets, or none with the real-text archives.
        """
        if budget not in BUDGETS:
            raise UnknownNameError("budget", budget, BUDGETS)
        from_datasets = source == "hf" or source.startswith(LOCAL)
        if not from_datasets and source not in SOURCES:
            raise UnknownNameError("source", source, SOURCES)
        if not from_datasets and (options.leave_out or options.unknown_licences):
            raise ConfigError("--without and --unknown-licences are for datasets: --source hf or local:PATH")
        name = options.tokenizer or (CARD_TOKENIZER if from_datasets else WORDS)
        settings: dict[str, Any] = {f"num_{split}": getattr(BUDGETS[budget], f"num_{split}") for split in CORPUS_SPLITS}
        settings |= {"seed": seed, "count_tokens": token_counter(name)}
        if options.window:
            settings["window"] = options.window
        revision, table = _from_datasets(source, settings, options) if from_datasets else _from_archives(settings)
        tokenizer = Path(name).name if Path(name).exists() else name
        recipe = _recipe(source, budget, seed, options, tokenizer)
        return cls(revision, tokenizer, recipe, (recipe, revision, source, name), table)


def _recipe(source: str, budget: str, seed: int, options: BuildOptions, tokenizer: str) -> str:
    """Return the command. It goes into what is published, so it names no folder of this machine."""
    origin = f"{LOCAL}PATH" if source.startswith(LOCAL) else source
    command = f"python -m recipes.passages --source {origin} --budget {budget} --seed {seed}"
    if options.tokenizer:
        command += f" --tokenizer {tokenizer}"
    if options.leave_out:
        command += f" --without {','.join(sorted(options.leave_out))}"
    if options.window:
        command += f" --window {options.window[0]}-{options.window[1]}"
    return command + (" --unknown-licences" if options.unknown_licences else "")


def _from_archives(settings: dict[str, Any]) -> tuple[str, Callable[[str, Yield], pa.Table]]:
    require_sources(archives_folder())  # raises once, and not for each concept
    revision = real_revision(concept.id for concept in CONCEPTS.all())
    return revision, lambda name, found: build_real(name, **settings, found=found)


def _from_datasets(
    source: str, settings: dict[str, Any], options: BuildOptions
) -> tuple[str, Callable[[str, Yield], pa.Table]]:
    settings = settings | {"leave_out": options.leave_out, "unknown_licences": options.unknown_licences}
    reader = reader_of(source)
    return f"{HUB_REVISION}, {REWRITERS_REVISION}", lambda name, found: build_hub(name, reader, **settings, found=found)


def parse_window(text: str) -> tuple[int, int]:
    """Return smallest and largest number of tokens from `LOW-HIGH`; raise ConfigError for anything else."""
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high)):
        raise ConfigError(f"--window {text}: give the smallest and the largest number of tokens, such as 90-160")
    return int(low), int(high)


YIELDS_NAME = "yields.json"
_INTERVAL_S = 5.0


class Reading:
    """Prints how many documents were read, at most every five seconds."""

    def __init__(self, concept: str) -> None:
        self._concept, self._printed_s = concept, time.monotonic()

    def __call__(self, num_documents: int) -> None:
        """Take the number of documents read so far."""
        if time.monotonic() - self._printed_s >= _INTERVAL_S:
            self._printed_s = time.monotonic()
            print(f"{self._concept}: {num_documents:,} documents read", file=sys.stderr)


def read_yields(folder: Path) -> dict[str, Any]:
    """Return the reports of a folder by concept; empty where there are none, or none that can be read."""
    try:
        reports = json.loads((folder / YIELDS_NAME).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return reports if isinstance(reports, dict) else {}


def write_yields(folder: Path, yields: Mapping[str, Any]) -> None:
    """Write the reports by concept."""
    write_at_once(folder / YIELDS_NAME, json.dumps(dict(sorted(yields.items())), indent=1, ensure_ascii=False) + "\n")


def show_yields(yields: Mapping[str, Any]) -> None:
    """Print one table: passages that were chosen, documents that were read, and what each rule dropped."""
    rows = [("concept", "passages", "documents", "dropped by rule")]
    for name, report in yields.items():
        rows.append(
            (name, f"{report['chosen']:,}", f"{sum(report['documents'].values()):,}", dropped_by(report) or "-")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        first = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=False))
        print(f"{first}  {row[3]}".rstrip())


def dropped_by(found: Mapping[str, Any]) -> str:
    """Return how many passages each rule dropped, as one line; the empty string for none."""
    return ", ".join(f"{rule} {counts['dropped']:,}" for rule, counts in found["rules"].items())


#: Folder below the output that finished concepts lie in until all are there.
_BUILDING = ".building"
_PARTIAL = ".partial"


def what_to_build(what: str, output: Path | None, concepts: str | None, source: str) -> tuple[str | None, Path]:
    """Return the concepts (None: all there are) and the folder of `python -m recipes.passages WHAT`.

    Args:
        what: `all`, concept ids with commas, or a folder.

    Raises:
        ConfigError: Concepts or the folder are given twice.
        UnknownNameError: It is nearly a concept.
    """
    names = [part.strip() for part in what.split(",") if part.strip()]
    ids = {concept.id for concept in CONCEPTS.all()}
    if what == "all" or (names and ids.issuperset(names)):
        if concepts is not None:
            raise ConfigError(f"{what} and --concepts {concepts} both name concepts; give one of them")
        return (None if what == "all" else what), output or Path("corpora") / source.partition(":")[0]
    if output is not None:
        raise ConfigError(f"{what} is neither `all` nor concepts, so it names the folder, as --output does; give one")
    if wrong := next((name for name in names if get_close_matches(name, [*ids, "all"], 1, 0.8)), None):
        raise UnknownNameError("concept", wrong, [*sorted(ids), "all"])
    return concepts, Path(what)


def build_folder(
    output: Path,
    source: str,
    concepts: Sequence[str],
    budget: str,
    seed: int,
    *,
    required: bool,
    options: BuildOptions | None = None,
) -> int:
    """Build the corpora of some concepts; return 1 if one that is `required` could not be built.

    A concept that fails stops no other. Finished concepts lie in a folder below `output` until all are there, so that
    the same command after an interruption makes only the others.
    """
    maker = Maker.of(source, budget, seed, options or BuildOptions())
    build = _Build(maker, output)
    names = [name for number, name in enumerate(concepts, 1) if build.make(name, f"{number} of {len(concepts)}")]
    if not names:
        raise CorpusError(f"no concept could be made from source {source!r}")
    yields = build.publish(names)
    show_yields({name: yields[name] for name in names if name in yields})
    missing = f"; {len(concepts) - len(names)} could not be made" if len(names) < len(concepts) else ""
    print(f"{len(names)} concepts written to {output}{missing}", flush=True)
    return 1 if required and missing else 0


@dataclass(frozen=True)
class _Build:
    """One build: what makes its concepts, and where they go."""

    maker: Maker
    output: Path

    @property
    def folder(self) -> Path:
        """Return the folder of the finished concepts of this build; another recipe or source has another one."""
        return self.output / _BUILDING / digest([*self.maker.identity], 12)

    def make(self, name: str, number: str) -> bool:
        """Make one concept, unless an earlier command has; return whether it is there."""
        finished = self.folder / name
        if finished.is_dir():
            print(f"{name} ({number}) ... there already", flush=True)
            return True
        tally = Yield(quoting=not withheld([name]), progress=Reading(name))
        try:
            table = self.maker.table(name, tally)
        except CorpusError as error:
            dropped = f"; dropped by rule: {rules}" if (rules := dropped_by(tally.to_dict())) else ""
            print(f"{name} ({number}) ... none: {error}{dropped}", flush=True)
            return False
        partial = finished.with_name(name + _PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        write_corpus(table.replace_schema_metadata(None), partial, self._manifest(table))
        write_yields(partial, {name: tally.to_dict()})
        partial.rename(finished)
        print(f"{name} ({number}) ... {table.num_rows} passages", flush=True)
        return True

    def publish(self, made: Sequence[str]) -> dict[str, Any]:
        """Move the finished concepts to the output, where they replace earlier ones, and write manifest and yields."""
        manifests = [part for name in made if (part := read_manifest(self.folder / name)) is not None]
        lows, highs = zip(*(manifest.window for manifest in manifests), strict=True)
        min_domains = {name: number for manifest in manifests for name, number in manifest.min_domains.items()}
        whole = manifests[0].model_copy(update={"window": (min(lows), max(highs)), "min_domains": min_domains})
        whole = joined_manifest(self.output, made, whole)
        for name in made:
            finished = self.folder / name / name
            if finished.is_dir():  # otherwise an interrupted command has moved it
                shutil.rmtree(self.output / name, ignore_errors=True)
                finished.rename(self.output / name)
        yields = read_yields(self.output)
        for name in made:
            yields |= read_yields(self.folder / name)
        write_yields(self.output, yields)
        write_manifest(self.output, whole)
        shutil.rmtree(self.output / _BUILDING)
        return yields

    def _manifest(self, table: pa.Table) -> CorpusManifest:
        return CorpusManifest(
            revision=self.maker.revision,
            tokenizer=self.maker.tokenizer,
            window=window_of([table]),
            recipe=self.maker.recipe,
            min_domains=few_domains(table["concept"][0].as_py(), table.to_pylist()),
        )
