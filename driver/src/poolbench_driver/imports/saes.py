"""Sparse autoencoders of a run: read from a folder or found in the object store, keyed by their contents."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poolbench.config import asset_path
from poolbench.directions.sae import SparseAutoencoder
from poolbench.directions.sae_files import CONFIG_FILE, architecture_of, read_config
from poolbench.errors import ConfigError, DamagedError, InputError
from poolbench.steps.local import IMPORT_SAE, TABLE, SaeParams
from poolbench.storage import Artifacts
from poolbench_driver.config import ConceptsConfig, SaeConfig
from poolbench_driver.corpora.sources import LocalStep
from poolbench_driver.models import ModelInfo

#: The shipped autoencoders of the demo model, and the name that a run gives them.
SHIPPED, DEMO = "demo_saes", "demo"
#: Where `import saes` writes, and where names are looked up.
SAES_FOLDER = Path("saes")
#: Files by which a folder is known to hold an autoencoder.
_MARKS = ("*.safetensors", "params.npz", "ae.pt", "hyperparams.json")


@dataclass
class ImportedSaes:
    """The names of the autoencoders that an import wrote, and the reasons why others were not written."""

    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def places_of(saes: Sequence[str], option: str = "--saes") -> dict[str, Path]:
    """Return the places of autoencoders by name.

    Args:
        saes: Each is `demo`, the name of an imported or shipped autoencoder, or the path of an autoencoder or of a
            folder of autoencoders.
        option: The option that names the autoencoders, for messages.

    Raises:
        ConfigError: A path does not exist or holds no autoencoder, or two autoencoders have one name.
    """
    places: dict[str, Path] = {}
    for source in saes:
        for name, path in _below(_root(source, option)).items():
            if name in places:
                raise ConfigError(f"{option}: two autoencoders are called {name}; rename a folder")
            places[name] = path
    return places


def known_places() -> dict[str, Path]:
    """Return the folders of shipped autoencoders and of autoencoders in `saes`, by name. `saes` has precedence."""
    roots = [root for root in (shipped(), SAES_FOLDER) if root is not None and root.is_dir()]
    places = {path.relative_to(root).as_posix(): path for root in roots for path in _folders_below(root)}
    return dict(sorted(places.items()))


def shipped() -> Path | None:
    """Return the folder of the shipped autoencoders, or None if this copy of the project, such as a wheel, lacks it."""
    try:
        return asset_path(SHIPPED)
    except ConfigError:
        return None


def _root(source: str, option: str) -> Path:
    ours = shipped()
    if source == DEMO:
        if ours is None:
            raise ConfigError(f"{option} {DEMO}: assets/{SHIPPED} is missing here; name a folder of autoencoders")
        return ours
    candidates = [Path(source).expanduser(), SAES_FOLDER / source, *([ours / source] if ours else [])]
    place = next((path for path in candidates if path.exists()), None)
    if place is None:
        raise ConfigError(f"{option} {source}: there is no such path, and no such name in `ls saes`")
    return place


def _below(root: Path) -> dict[str, Path]:
    """Return the autoencoder at a path, or the autoencoders below the path. Raise ConfigError if there is none."""
    if root.is_file() or _holds_one(root):
        return {(root.resolve().parent if root.is_file() else root.resolve()).name: root}
    places = {path.relative_to(root).as_posix(): path for path in _folders_below(root)}
    if not places:
        raise ConfigError(f"{root} holds no autoencoder: no {', '.join(_MARKS)} at any depth")
    return places


def _folders_below(folder: Path) -> Iterator[Path]:
    """Yield the folders of autoencoders. Do not search below them, because some formats have weights in a subfolder."""
    for path in sorted(child for child in folder.iterdir() if child.is_dir()):
        if _holds_one(path):
            yield path
        else:
            yield from _folders_below(path)


def _holds_one(path: Path) -> bool:
    return path.is_dir() and any(next(path.glob(pattern), None) for pattern in _MARKS)


def read_all(places: dict[str, Path]) -> Iterator[tuple[str, SparseAutoencoder | InputError, dict[str, bytes]]]:
    """Yield name, autoencoder and canonical files of each place. An unreadable autoencoder is replaced by its error."""
    for name, path in places.items():
        try:
            sae, files = SparseAutoencoder.from_folder(path)
        except InputError as error:
            yield name, error, {}
        else:
            yield name, sae, files


def import_saes(source: Path, target: Path) -> ImportedSaes:
    """Convert the autoencoders of a file or folder, in any known format, to folders in the canonical format.

    Raise ConfigError if there is no autoencoder, InputError if a folder cannot be written.
    """
    if not source.exists():
        raise ConfigError(f"{source}: there is no such file or folder")
    done = ImportedSaes()
    for name, sae, files in read_all(_below(source)):
        if isinstance(sae, InputError):
            done.notes.append(str(sae))
            continue
        folder = target / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                (folder / file).write_bytes(data)
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror or error}") from None
        done.names.append(name)
    return done


@dataclass(frozen=True)
class SaeInput:
    """The autoencoder of one layer."""

    key: str
    num_features: int  # number of features that C5 uses
    step: LocalStep | None = None  # step that stores it; None if it is stored already


def sae_inputs(config: ConceptsConfig, model: ModelInfo, artifacts: Artifacts) -> dict[int, SaeInput]:
    """Return the autoencoders of a run by layer. Raise ConfigError or InputError if an autoencoder does not fit."""
    layers, sae_by_layer = model.layers(config.layers), dict[int, SaeInput]()
    for sae in config.saes:
        layer = model.layer(sae.layer)
        if layer not in layers or layer in sae_by_layer:
            raise ConfigError(f"saes: layer {layer} must be one of {layers}, once; got {sae.layer} for {sae.path}")
        sae_by_layer[layer] = (
            _stored(sae, artifacts) if sae.path.startswith(f"{IMPORT_SAE.kind}.") else _read(sae, model.width)
        )
    return sae_by_layer


def _stored(sae: SaeConfig, artifacts: Artifacts) -> SaeInput:
    if not artifacts.exists(sae.path):
        raise ConfigError(f"saes: the object store has no {sae.path}; give the folder that the autoencoder lies in")
    try:
        architecture_of(read_config(artifacts.read(sae.path, CONFIG_FILE)))
    except DamagedError as error:
        remedy = "name the folder that the autoencoder lies in as `path`, and the run imports it again"
        raise DamagedError(sae.path, error.what, remedy) from None
    return SaeInput(sae.path, sae.num_features)


def _read(sae: SaeConfig, width: int) -> SaeInput:
    autoencoder, files = SparseAutoencoder.from_folder(Path(sae.path).expanduser())
    if autoencoder.width != width:
        raise ConfigError(f"saes: {sae.path} reads width {autoencoder.width}; the model's states have {width}")
    step = sae_step(f"autoencoder {Path(sae.path).name}", files, lambda: files)
    return SaeInput(step.key, sae.num_features, step)


def sae_step(label: str, files: Mapping[str, bytes], read: Callable[[], dict[str, bytes]]) -> LocalStep:
    """Return the step that stores an autoencoder under the hashes of its files. The step calls `read` for the files."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return LocalStep(IMPORT_SAE.key(TABLE(), SaeParams(files=digests), {}), label, read)
