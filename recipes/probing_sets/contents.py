"""Whether archives are those that the definitions were written for."""

from collections.abc import Iterable
from pathlib import Path

from recipes.passages.documents import MANIFEST, archives_folder
from recipes.passages.documents import require_contents as require_files
from recipes.probing_sets.readers import pairs, treebank

from poolbench.errors import CorpusError
from poolbench_corpora.probing import ProbingSet


def require_contents(definitions: Iterable[ProbingSet], archives: Path | None = None) -> None:
    """Compare the archives with their manifest, and its commits with those of the definitions.

    Raise CorpusError for a file that is absent or has another hash, and for a commit that the manifest lacks.
    """
    folder = archives_folder(archives)
    commits = {source.rpartition("@")[2] for source in require_files(folder, (treebank.ARCHIVE, pairs.ARCHIVE))}
    for definition in definitions:
        if definition.reader != "comparisons" and definition.revision not in commits:
            raise CorpusError(
                f"probing set {definition.id!r} is of commit {definition.revision}, which {folder / MANIFEST} does not "
                "have: point POOLBENCH_REAL_TEXT to the archives of this commit"
            )
