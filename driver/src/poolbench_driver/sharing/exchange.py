"""Push a run or a vector to where others fetch it, and pull it from there: a folder, an S3 bucket, or the hub.

What lies there is a folder with a card and checksums, which are written last and checked by who pulls it. On the hub, a
run is a dataset, and each vector is a model repository of its own.
"""

import shutil
import tempfile
from pathlib import Path

from poolbench.directions.vector_files import CARD_FILE, VECTOR_FILE
from poolbench.errors import CorpusError, InputError, IntegrityError, NotFoundError, StoreError, shown
from poolbench.storage import open_store
from poolbench_corpora.folders.hub import PREFIX, source_folder
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

_OF_RUN = "config.resolved.yaml"


def write_vector(folder: Path, output: Path, licence: str | None) -> str:
    """Write a vector as a repository: its files, a card for the hub and checksums; return its name.

    Raises:
        InputError: It is not the folder of a vector.
        RestrictedError: The concept is sensitive.
    """
    vector = Vector.load(folder)
    refuse_restricted_vector(vector)
    card = vector.card
    write_files(output, vector.files())
    base = {"base_model": card.model} if "/" in card.model and not Path(card.model).exists() else {}
    tags = ("poolbench", "steering-vector", "activation-steering", *([card.concept] if card.concept else []))
    header = hub_header(licence or card.licence, tags=tags, library_name="poolbench", **base)
    facts = {
        "model": card.model,
        "model revision": str(card.model_revision),
        "layers": ", ".join(map(str, card.layers)),
    }
    facts |= {"strategy": str(card.strategy), "recommended strength": str(card.strength.recommended)}
    reading = [
        "",
        f"`{CARD_FILE}` has all figures with their intervals; `{VECTOR_FILE}` has `direction.N` for layer N.",
    ]
    lead = f"A steering vector for {card.concept or 'a concept'}: {card.apply.formula}."
    text = render_card(header, f"Steering vector {card.name}", lead, facts, reading)
    write_release(output, text, {"kind": "poolbench-vector", "version": 1, "name": card.name}, {})
    return card.name


def push(folder: Path, place: str, kind: str) -> str:
    """Write a folder with checksums to a place and return its address.

    Args:
        place: A folder, `s3://bucket/prefix`, or `hf:OWNER/NAME`.
        kind: `dataset` or `model`, as the hub calls the repository.

    Raises:
        InputError: The place holds something else.
        StoreError: It cannot be written.
    """
    if place.startswith(PREFIX):
        return _push_to_hub(folder, place, kind)
    store = open_store(place)
    present = {info.path for info in store.list()}
    if present and CHECKSUMS not in present:
        raise InputError(f"{place} holds other files; name a new folder, or one that was pushed to before")
    store.delete(CHECKSUMS)  # until all files are those of this folder
    names = [name for name in files_below(folder) if name != CHECKSUMS]
    for name in (*names, CHECKSUMS):
        store.put(name, (folder / name).read_bytes())
    for name in present - {*names, CHECKSUMS}:
        store.delete(name)
    return place


def _push_to_hub(folder: Path, place: str, kind: str) -> str:
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    name, api = place.removeprefix(PREFIX), HfApi()
    try:
        api.create_repo(name, repo_type=kind, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message="Push of PoolBench")
    except (HTTPError, OSError, ValueError) as error:
        cause = str(error).strip().split("\n")[0][:300] or type(error).__name__
        remedy = "write hf:OWNER/NAME, and set HF_TOKEN to a token that may write there"
        raise StoreError(f"{shown(place)} could not be written on the hub ({cause}); {remedy}") from None
    return place


def pull(place: str, output: Path) -> Path:
    """Fetch what was pushed, check each file, and return its folder: a run of `output`, or a vector in it.

    Raises:
        ConfigError: The place has not the form of one.
        NotFoundError: Nothing was pushed there.
        IntegrityError: A file is not as the checksums say.
        InputError: The folder that it belongs into holds something else.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".pull-") as temporary:
        root = Path(temporary) if not place.startswith(PREFIX) else _from_hub(place)
        if root == Path(temporary):
            _fetch(place, root)
        sums = checksums(root) if (root / CHECKSUMS).is_file() else {}
        for name, digest in sums.items():
            if not (root / name).is_file() or sha256_of(root / name) != digest:
                raise IntegrityError(f"{place}: {name} is not as its {CHECKSUMS} says; push it again")
        runs = [Path(name).parent for name in sums if Path(name).name == _OF_RUN]
        if not runs and CARD_FILE not in sums:
            raise NotFoundError(f"{place} has neither a run nor a vector that was pushed")
        source, target = (root / runs[0], output / runs[0]) if runs else (root, output / Vector.load(root).card.name)
        if target.is_dir() and not any((target / mark).is_file() for mark in (_OF_RUN, CARD_FILE)):
            raise InputError(f"{target} holds other files; name another folder")
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


def _fetch(uri: str, root: Path) -> None:
    store = open_store(uri)
    try:
        write_files(root, {CHECKSUMS: store.get(CHECKSUMS)})
        write_files(root, {name: store.get(name) for name in checksums(root)})
    except NotFoundError as error:
        raise NotFoundError(f"{uri} holds nothing that was pushed, or not all of it ({error})") from None
