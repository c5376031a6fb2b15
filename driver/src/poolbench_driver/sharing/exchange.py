"""Push a run or a vector to where others fetch it, and pull it from there: a folder, an S3 bucket, or the hub.

What lies there is a folder with a card and checksums, which are written last and checked by who pulls it. On the hub, a
run is a dataset, and each vector is a model repository of its own.
"""

import re
import shutil
import tempfile
from pathlib import Path

from poolbench.directions.vector_files import CARD_FILE
from poolbench.errors import CorpusError, InputError, IntegrityError, NotFoundError
from poolbench.storage import open_store
from poolbench_corpora.folders.hub import PREFIX, source_folder, upload
from poolbench_driver.dataset_folder import (
    CHECKSUMS,
    files_below,
    hub_header,
    render_card,
    replacing,
    sha256_of,
    write_release,
)
from poolbench_driver.sharing.bundle import checksums
from poolbench_driver.vectors.card import Vector, write_files
from poolbench_driver.vectors.exporting import refuse_restricted_vector


def write_vector(folder: Path, output: Path, licence: str | None) -> str:
    """Write a vector as a repository with its files, a card for the hub, and checksums. Return the vector's name.

    Raises:
        InputError: `folder` is not the folder of a vector.
        RestrictedError: The concept is sensitive.
    """
    vector = Vector.load(folder)
    refuse_restricted_vector(vector)
    card = vector.card
    write_files(output, vector.files())
    tags = ("poolbench", "steering-vector", "activation-steering", *([card.concept] if card.concept else []))
    header = hub_header(licence or card.licence, tags=tags, library_name="poolbench")
    header += [f"base_model: {card.model}"] if "/" in card.model and not Path(card.model).exists() else []
    facts = {"model": f"{card.model} at {card.model_revision}", "layers": ", ".join(map(str, card.layers))}
    facts |= {"strategy": str(card.strategy), "recommended strength": str(card.strength.recommended)}
    lead = f"A steering vector for {card.concept or 'a concept'}: {card.apply.formula}. {CARD_FILE} has its figures."
    text = render_card(header, f"Steering vector {card.name}", lead, facts)
    write_release(output, text, {"kind": "poolbench-vector", "version": 1, "name": card.name}, {})
    return card.name


def push(folder: Path, place: str, kind: str) -> str:
    """Write a folder with checksums to a place and return its address. Files that only the last push had are removed.

    Args:
        place: A folder, `s3://bucket/prefix`, or `hf:OWNER/NAME`.
        kind: `dataset` or `model`, as the hub calls the repository.

    Raises:
        InputError: The place holds something else.
        StoreError: The place cannot be written.
    """
    if place.startswith(PREFIX):
        upload(folder, place, kind)
        return place
    store = open_store(place)
    if not store.exists(CHECKSUMS) and next(store.list(), None) is not None:
        raise InputError(f"{place} holds other files; name a new folder, or one that was pushed to before")
    earlier = checksums(store.get(CHECKSUMS)) if store.exists(CHECKSUMS) else {}
    store.delete(CHECKSUMS)  # until all files are those of this folder
    names = [name for name in files_below(folder) if name != CHECKSUMS]
    for name in (*names, CHECKSUMS):
        store.put(name, (folder / name).read_bytes())
    for name in earlier.keys() - names:
        store.delete(name)
    return place


def pull(place: str, output: Path) -> Path:
    """Fetch a run or a vector that was pushed, check each file, and return its folder below `output`.

    Raises:
        ConfigError: The place does not have the form of a place.
        NotFoundError: Nothing was pushed there.
        IntegrityError: A file differs from the checksums.
        InputError: The target folder holds something else.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".pull-") as temporary:
        root = _from_hub(place) if place.startswith(PREFIX) else _fetched(place, Path(temporary))
        sums = checksums((root / CHECKSUMS).read_bytes()) if (root / CHECKSUMS).is_file() else {}
        for name, digest in sums.items():
            if not (root / name).is_file() or sha256_of(root / name) != digest:
                raise IntegrityError(f"{place}: {name} is not as its {CHECKSUMS} says; push it again")
        source = next((root / name for name in sums if re.fullmatch(r"[\w.-]+/config\.resolved\.yaml", name)), None)
        if source is None and CARD_FILE not in sums:
            raise NotFoundError(f"{place} has neither a run nor a vector that was pushed")
        source = root if source is None else source.parent
        name = re.sub(r"[^\w.+-]", "_", Vector.load(root).card.name) if source == root else source.name
        target = output / (name.strip(".") or "vector")
        if target.exists():
            if any(
                not (target / f).is_file() or sha256_of(target / f) != sha256_of(source / f)
                for f in files_below(source)
            ):
                raise InputError(f"{target} is there and differs; remove it, or name another folder")
            return target
        with replacing(target) as partial:
            shutil.copytree(source, partial, dirs_exist_ok=True)
        return target


def _from_hub(place: str) -> Path:
    """Return the download of a run, or of a vector. Raise CorpusError if neither can be had."""
    try:
        return source_folder(place, ("",))
    except CorpusError as error:
        try:
            return source_folder(place, ("",), "model")
        except CorpusError:
            raise error from None


def _fetched(uri: str, root: Path) -> Path:
    store = open_store(uri)
    try:
        sums = store.get(CHECKSUMS)
        write_files(root, {CHECKSUMS: sums, **{name: store.get(name) for name in checksums(sums)}})
    except NotFoundError as error:
        raise NotFoundError(f"{uri} holds nothing that was pushed, or not all of it ({error})") from None
    return root
