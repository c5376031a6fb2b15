"""The vectors below a folder."""

from collections.abc import Iterator
from pathlib import Path

from poolbench.directions.vector_files import CARD_FILE, VECTOR_FILE
from poolbench.errors import InputError, NotFoundError
from poolbench_driver.vectors.card import VectorCard

#: Where `vectors import` writes, and where names are looked up.
FOLDER = Path("vectors")


def cards_below(folder: Path) -> Iterator[tuple[Path, VectorCard | InputError]]:
    """Yield the folders of vectors at or below a folder, each with its card, or with the error of reading the card."""
    for file in sorted(folder.rglob(CARD_FILE)):
        if not file.with_name(VECTOR_FILE).is_file():
            continue
        try:
            yield file.parent, VectorCard.parse(file.read_bytes())
        except (InputError, OSError) as error:
            yield file.parent, InputError(f"{file}: {error}")


def place_of(vector: str) -> Path:
    """Return the place of a vector: a path, or the name of a folder in `vectors`.

    Raises:
        NotFoundError: There is no such path or folder.
    """
    for path in (Path(vector).expanduser(), FOLDER / vector):
        if path.exists():
            return path
    names = ", ".join(path.relative_to(FOLDER).as_posix() for path, _ in cards_below(FOLDER)) or "none"
    raise NotFoundError(f"{vector!r} is neither a path nor a folder in {FOLDER}, which has: {names}")


def folder_name(name: str) -> str:
    """Return the name of a folder for the vector of this name."""
    return "".join(sign if sign.isalnum() or sign in "._+-" else "_" for sign in name).lstrip(".") or "vector"
