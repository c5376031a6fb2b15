"""Text members of the real-text archive `parsing.tar.xz`."""

import tarfile
from pathlib import Path

from poolbench.settings import FolderSettings

ARCHIVE_NAME = "parsing.tar.xz"
DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
KEPT_SUFFIXES = (".conllu", ".iob2", ".conll", ".txt", ".annotated", ".md")


def archive_folder() -> Path:
    """Return the folder of the real-text archives (`POOLBENCH_REAL_TEXT`, else beside the checkout)."""
    return FolderSettings.load().real_text or DEFAULT_FOLDER


def read_members(folder: Path) -> dict[str, str]:
    """Return the treebanks and entity sets by path inside the archive. Raise FileNotFoundError without archive."""
    path = folder / ARCHIVE_NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; set POOLBENCH_REAL_TEXT to the folder that holds {ARCHIVE_NAME}"
        )
    members = {}
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.name.endswith(KEPT_SUFFIXES) else None
            if handle is not None:
                name = member.name.removeprefix("./").removeprefix("parsing/")
                members[name] = handle.read().decode("utf-8")
    return members
