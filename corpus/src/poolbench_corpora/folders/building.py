"""Build the corpora of several concepts, one at a time, so that an interrupted build goes on where it stopped."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pyarrow as pa

from poolbench.concepts import CONCEPTS, withheld
from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.folders.makers import BuildOptions, Maker
from poolbench_corpora.folders.yields import Reading, dropped_by, read_yields, show_yields, write_yields
from poolbench_corpora.io import CorpusManifest, joined_manifest, read_manifest, write_corpus, write_manifest
from poolbench_corpora.yields import Yield

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
        whole = manifests[0].model_copy(update={"window": (min(lows), max(highs))})
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
        )


def window_of(tables: Sequence[pa.Table]) -> tuple[int, int]:
    """Return the smallest and the largest number of tokens of PASSAGES; zeros where none is known."""
    counts = [count for table in tables for count in table["token_count"].to_pylist() if count is not None]
    return (min(counts), max(counts)) if counts else (0, 0)
