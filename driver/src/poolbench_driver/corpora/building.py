"""Build the corpora of several concepts, one at a time, so that an interrupted build goes on where it stopped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import pyarrow as pa
import typer

from poolbench.concepts import CONCEPTS
from poolbench.config import BUDGETS, CorpusConfig, RunConfig
from poolbench.contracts.keys import digest
from poolbench.corpora.io import MANIFEST_NAME, CorpusManifest, read_manifest, write_corpus
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_driver.corpora.sources import concept_table, dataset_identity

SOURCES = ("planted", "real")
#: Folder below the output that finished concepts lie in until all are there.
_BUILDING = ".building"
_PARTIAL = ".partial"


def what_to_build(what: str, output: Path | None, concepts: str | None, source: str) -> tuple[str | None, Path]:
    """Return the concepts (None: all there are) and the folder of `corpus build WHAT`.

    Args:
        what: `all`, concept ids with commas, or a folder.

    Raises:
        ConfigError: Concepts or the folder are given twice.
        UnknownNameError: It is nearly a concept.
    """
    names = [part.strip() for part in what.split(",") if part.strip()]
    known = {concept.id for concept in CONCEPTS.all()}
    if what == "all" or (names and known.issuperset(names)):
        if concepts is not None:
            raise ConfigError(f"{what} and --concepts {concepts} both name concepts; give one of them")
        return (None if what == "all" else what), output or Path("corpora") / source
    if output is not None:
        raise ConfigError(f"{what} is neither `all` nor concepts, so it names the folder, as --output does; give one")
    if wrong := next((name for name in names if get_close_matches(name, [*known, "all"], 1, 0.8)), None):
        raise UnknownNameError("concept", wrong, [*sorted(known), "all"])
    return concepts, Path(what)


def build_folder(output: Path, source: str, concepts: Sequence[str], budget: str, seed: int, *, required: bool) -> int:
    """Build the corpora of some concepts; return 1 if one that is `required` could not be built.

    A concept that fails stops no other. Finished concepts lie in a folder below `output` until all are there, so that
    the same command after an interruption makes only the others.
    """
    if budget not in BUDGETS:
        raise UnknownNameError("budget", budget, BUDGETS)
    if source not in SOURCES:
        raise UnknownNameError("source", source, SOURCES)
    config = RunConfig(budget=BUDGETS[budget], corpus=CorpusConfig(source=source, seed=seed))
    recipe = f"poolbench-driver corpus build --source {source} --budget {budget} --seed {seed}"
    build = _Build(config, recipe, output)
    made = [name for number, name in enumerate(concepts, 1) if build.make(name, f"{number} of {len(concepts)}")]
    if not made:
        raise CorpusError(f"no concept could be made from source {source!r}")
    build.publish(made)
    missing = f"; {len(concepts) - len(made)} could not be made" if len(made) < len(concepts) else ""
    typer.echo(f"{len(made)} concepts written to {output}{missing}")
    return 1 if required and missing else 0


@dataclass(frozen=True)
class _Build:
    """One build: what it makes, and where."""

    config: RunConfig
    recipe: str
    output: Path

    @property
    def revision(self) -> str:
        """Return the revision of the source."""
        return str(dataset_identity(self.config, CONCEPTS.all())["revision"])

    @property
    def folder(self) -> Path:
        """Return the folder of the finished concepts of this build; another recipe or source has another one."""
        return self.output / _BUILDING / digest([self.recipe, self.revision], 12)

    def make(self, name: str, number: str) -> bool:
        """Make one concept, unless an earlier command has; return whether it is there."""
        finished = self.folder / name
        if finished.is_dir():
            typer.echo(f"{name} ({number}) ... there already")
            return True
        try:
            table = concept_table(self.config, name)
        except CorpusError as error:
            typer.echo(f"{name} ({number}) ... none: {error}")
            return False
        partial = finished.with_name(name + _PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        write_corpus(table.replace_schema_metadata(None), partial, self._manifest(table))
        partial.rename(finished)
        typer.echo(f"{name} ({number}) ... {table.num_rows} passages")
        return True

    def publish(self, made: Sequence[str]) -> None:
        """Move the finished concepts to the output, where they replace earlier ones, and write the manifest."""
        manifests = [found for name in made if (found := read_manifest(self.folder / name)) is not None]
        for name in made:
            finished = self.folder / name / name
            if finished.is_dir():  # otherwise an interrupted command has moved it
                shutil.rmtree(self.output / name, ignore_errors=True)
                finished.rename(self.output / name)
        lows, highs = zip(*(manifest.window for manifest in manifests), strict=True)
        whole = manifests[0].model_copy(update={"window": (min(lows), max(highs))})
        partial = self.output / (MANIFEST_NAME + _PARTIAL)
        partial.write_text(whole.model_dump_json(indent=2) + "\n", "utf-8")
        partial.replace(self.output / MANIFEST_NAME)
        shutil.rmtree(self.output / _BUILDING)

    def _manifest(self, table: pa.Table) -> CorpusManifest:
        return CorpusManifest(
            revision=self.revision,
            tokenizer=(table.schema.metadata or {}).get(b"tokenizer", b"words").decode(),
            window=window_of([table]),
            recipe=self.recipe,
        )


def window_of(tables: Sequence[pa.Table]) -> tuple[int, int]:
    """Return the smallest and the largest number of tokens of PASSAGES; zeros where none is known."""
    counts = [count for table in tables for count in table["token_count"].to_pylist() if count is not None]
    return (min(counts), max(counts)) if counts else (0, 0)
