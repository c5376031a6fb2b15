"""Text members of the real-text archive `parsing`."""

from pathlib import Path

from recipes.passages.documents import archives_folder, read_archive

ARCHIVE = "parsing"
KEPT_SUFFIXES = (".conllu", ".iob2", ".conll", ".txt", ".annotated", ".md")


def read_members(folder: Path | None) -> dict[str, str]:
    """Return the treebanks and entity sets by path inside the archive, by default of the folder POOLBENCH_REAL_TEXT.

    Raise CorpusError without the archive.
    """
    members = read_archive(archives_folder(folder), ARCHIVE)
    return {name: content.decode("utf-8") for name, content in members.items() if name.endswith(KEPT_SUFFIXES)}
