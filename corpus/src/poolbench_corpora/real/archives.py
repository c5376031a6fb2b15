"""The real-text archives as mappings from path to bytes, packed or unpacked."""

import tarfile
from functools import cache
from pathlib import Path

from poolbench.errors import CorpusError
from poolbench.settings import FolderSettings

ARCHIVES_VARIABLE = FolderSettings.variable("real_text")
ARCHIVE_NAMES = ("parsing", "passages", "probing")


def archives_folder(folder: str | Path | None = None) -> Path:
    """Return the folder of the archives, by default POOLBENCH_REAL_TEXT. Raise CorpusError if it holds none."""
    location = folder or FolderSettings.load().real_text
    if not location:
        raise CorpusError(
            f"no folder of real-text archives was named; set {ARCHIVES_VARIABLE} to the folder that holds "
            f"{', '.join(f'{name}.tar.xz' for name in ARCHIVE_NAMES)}"
        )
    path = Path(location).expanduser()
    if not any(_holds(path, name) for name in ARCHIVE_NAMES):
        raise CorpusError(
            f"{path} holds none of the real-text archives ({', '.join(ARCHIVE_NAMES)}, each a folder or a "
            f".tar.xz file); point {ARCHIVES_VARIABLE} to the folder that does"
        )
    return path


def has_archive(folder: str | Path | None, name: str) -> bool:
    """Return whether the folder, by default POOLBENCH_REAL_TEXT, holds an archive of `ARCHIVE_NAMES`."""
    try:
        return _holds(archives_folder(folder), name)
    except CorpusError:
        return False


def _holds(folder: Path, name: str) -> bool:
    return (folder / name).is_dir() or _packed(folder, name).is_file()


def read_archive(folder: str | Path, name: str) -> dict[str, bytes]:
    """Return every file of one archive of `ARCHIVE_NAMES`, by its path below the archive's root. Raise CorpusError
    without it.

    The unpacked folder is preferred if both exist. The result is kept in memory (about 95 MB for `passages`), because
    xz streams cannot be read at random.
    """
    return _read_archive(str(archives_folder(folder)), name)


@cache
def _read_archive(folder: str, name: str) -> dict[str, bytes]:
    root, packed = Path(folder) / name, _packed(Path(folder), name)
    if root.is_dir():
        return _read_folder(root)
    if not packed.is_file():
        raise CorpusError(f"archive {packed.name} is missing from {folder}; put it there or unpack it as {root}")
    try:
        return _read_tar(packed)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise CorpusError(f"archive {packed} cannot be read ({error}); fetch it again") from error


def _packed(folder: Path, name: str) -> Path:
    return folder / f"{name}.tar.xz"


def _read_folder(root: Path) -> dict[str, bytes]:
    # If an archive is unpacked into a folder of the same name, the name occurs twice.
    root = root / root.name if (root / root.name).is_dir() else root
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def _read_tar(path: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                files[member.name.removeprefix("./").partition("/")[2]] = stream.read()
    return dict(sorted(files.items()))
