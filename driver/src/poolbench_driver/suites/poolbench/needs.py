"""What a run of PoolBench needs, which of it this machine has, and the flag that replaces it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from poolbench.concepts import CONCEPTS
from poolbench.config import CARD_MODELS, MODEL_PRESETS, ModelRef, local_folder
from poolbench.errors import PoolbenchError
from poolbench.settings import ClusterSettings
from poolbench.statistics.response import MIN_OPENINGS
from poolbench_corpora.folders.hub import PREFIX
from poolbench_corpora.io import concept_folder, has_scorer_texts
from poolbench_driver.cluster.session import Session
from poolbench_driver.config import ConceptsConfig, CorpusConfig, corpus_folder
from poolbench_driver.contract.abilities import Need
from poolbench_driver.doctor.finding import free_bytes_at
from poolbench_driver.models import ModelInfo, describe_model
from poolbench_driver.stages.scope import concepts_of
from poolbench_driver.suites.poolbench.presets import PUBLISHED_CORPUS

#: The driver of NVIDIA makes this file.
GPU_DEVICE = Path("/dev/nvidiactl")
#: Makes the published corpus.
IMPORT_PUBLISHED = f"POOLBENCH_SENSITIVE=true poolbench-driver corpus import hf:nips234678/poolbench {PUBLISHED_CORPUS}"
#: Bytes of a decoder's weights for one block and squared width: attention has 4 matrices and the feed-forward layers
#: have 8, in 2 bytes each; embeddings, and what current models have more, are another quarter.
_BYTES_PER_BLOCK = 12 * 2 * 1.25


def needs_of(config: ConceptsConfig, cluster: ClusterSettings | None) -> Iterator[Need]:
    """Yield the needs of a run that can be checked before it starts, in the order in which the run would fail.

    Args:
        cluster: The cluster of the run. None if no cluster is running yet.
    """
    yield Need("cluster", cluster is not None, "make cluster-up, with PROFILE=gpu for GPUs")
    here = _is_here(cluster)
    # A local cluster starts without the hub. What is not in the cache is downloaded then, and may be gated.
    offline = here and os.environ.get("HF_HUB_OFFLINE") != "0"
    if here:
        yield from _weights(config, offline=offline)
    yield from _passages(config)
    if _steers(config):
        yield from _scorers(config, offline=offline)
        if config.budget.num_openings < MIN_OPENINGS:
            what = f"{MIN_OPENINGS} openings, without which D2 and D3 are null"
            instead = f"use --set budget.num_openings={MIN_OPENINGS} or more, or --metrics d1"
            yield Need(what, False, instead, nulls=("d2", "d3"))
    yield from _device(config, here=here)


def with_stand_ins(config: ConceptsConfig, session: Session) -> tuple[ConceptsConfig, ModelInfo | None, list[Need]]:
    """Return the settings and the model with which a dry run can count, and the needs that this model replaces.

    If the published corpus is absent, the settings name as many planted passages instead. If a preset model of
    known shape is not available, its known shape is used. For a model without a known shape, the model is None.
    """
    counted, needs, model = config, list[Need](), None
    if config.corpus.source == PUBLISHED_CORPUS and not Path(PUBLISHED_CORPUS).is_dir():
        counted = config.model_copy(update={"corpus": CorpusConfig(window=(300, 500))})
    ref = MODEL_PRESETS.get(config.model)
    if ref is not None and ref.shape is not None:
        try:
            model = describe_model(config, session.services)
        except PoolbenchError as error:
            revision = config.model_revision or ref.revision
            resolved = ModelRef(ref.id, ref.source, revision, config.dtype or ref.dtype, ref.summary)
            model = ModelInfo(resolved, *ref.shape)
            is_named = _is_here(session.settings) and not ref.is_made and not in_cache(ref.source)  # among the needs
            needs = [] if is_named else [_absent(ref, error)]
    return counted, model, needs


def _absent(ref: ModelRef, error: PoolbenchError) -> Need:
    if ref.is_made:
        instead = "a run on a local cluster fetches and converts it first"
        return Need(f"model {ref.id} is not here yet", False, instead, stops=False)
    return Need(f"{ref.source} ({error})", False, "make it available to the extractor, or use --model demo")


def _is_here(cluster: ClusterSettings | None) -> bool:
    """Return whether a run reads models and corpora of this machine: its cluster is local, or there is no cluster."""
    return cluster is None or urlsplit(cluster.http_address or "").hostname in ("127.0.0.1", "localhost", "::1")


def _steers(config: ConceptsConfig) -> bool:
    return bool({"d2", "d3"} & set(config.metrics))


def _weights(config: ConceptsConfig, *, offline: bool) -> Iterator[Need]:
    """Yield the needs of a model on the hub: its weights, and disk space for the download.

    Any other model needs nothing.
    """
    ref = MODEL_PRESETS.get(config.model)
    name = ref.source if ref else config.model
    if local_folder(name) is not None or "/" not in name:  # it ships, is made on this machine, or lies in a folder
        return
    is_cached = in_cache(name)
    gate = "accept its licence on the hub and set HF_TOKEN, then " if ref and "gated" in ref.summary else ""
    yield Need(
        f"weights of {name} in the Hugging Face cache of this machine",
        is_cached,
        f"{gate}`hf download {name}`, or use --model with another model",
        stops=offline,
    )
    if not is_cached and ref and ref.shape:
        num_blocks, width = ref.shape
        gib = _BYTES_PER_BLOCK * num_blocks * width**2 / 2**30
        free = free_bytes_at(hub_cache()) / 2**30
        what = f"{gib:.0f} GiB of disk at {hub_cache()} for them ({free:.0f} are free)"
        yield Need(what, free >= gib, "set HF_HOME to a folder on a larger disk")


def _passages(config: ConceptsConfig) -> Iterator[Need]:
    source = config.corpus.source
    names = [name for name in concepts_of(config) if not CONCEPTS.get(name).corpus]
    if source == "planted" or not names:
        return
    folder = corpus_folder(source)
    make = f"poolbench-driver corpus import {source} corpora/NAME" if source.startswith(PREFIX) else IMPORT_PUBLISHED
    get = f"get it (`{make}`), or " if source == PUBLISHED_CORPUS or source.startswith(PREFIX) else ""
    yield Need(f"corpus in {source}", folder.is_dir(), f"{get}use --corpus with another folder, real or planted")
    present = [name for name in names if concept_folder(folder, name).is_dir()]
    if folder.is_dir() and (lacking := [name for name in names if name not in present]):
        sensitive = all(CONCEPTS.get(name).sensitive for name in lacking) and source == PUBLISHED_CORPUS
        get = f"import them too (`{IMPORT_PUBLISHED}`), or " if sensitive else ""
        use = f"use --concepts {','.join(present)}" if present else "use --corpus with another folder, real or planted"
        yield Need(f"passages of {', '.join(lacking)} in {source}", False, f"{get}{use}")
    yield from _scorer_texts(config, present if folder.is_dir() else names)


def _scorer_texts(config: ConceptsConfig, names: Sequence[str]) -> Iterator[Need]:
    """Yield the need for texts that train scorers, if some concepts have none. The published corpus has none."""
    source, other = config.corpus.source, config.corpus.scorer_texts
    if config.scorer_mode == "import" or not _steers(config) or other == "planted":
        return
    if not corpus_folder(source).is_dir() and source != PUBLISHED_CORPUS:
        return
    folders = [corpus_folder(folder) for folder in (source, other) if folder is not None]
    if lacking := [n for n in names if not any(has_scorer_texts(f, n) for f in folders)]:
        of = f"all {len(lacking)} concepts" if len(lacking) > 5 and lacking == list(names) else ", ".join(lacking)
        where = " and ".join(map(str, folders))
        what = f"texts to train the scorers of {of} on, in {where}: without them D2 and D3 are null"
        published = "--scorers published (the reference's classifiers)"
        instead = f"use {published}, --scorer-texts with a folder, real or planted, or --metrics d1"
        yield Need(what, False, instead, nulls=("d2", "d3"))


def _scorers(config: ConceptsConfig, *, offline: bool) -> Iterator[Need]:
    base = config.scorer_base
    if base == "minilm" or Path(base).expanduser().is_dir():
        return
    others = {"published": "--scorers published, ", "bert": "--scorers bert, "}
    others.pop("published" if config.scorer_mode == "import" else "bert")
    instead = f"`hf download {base}`, or use {''.join(others.values())}--scorers minilm"
    what = f"scorers: weights of {base} in the Hugging Face cache of this machine"
    yield Need(what, in_cache(base), instead, stops=offline)


def _device(config: ConceptsConfig, *, here: bool) -> Iterator[Need]:
    trains = _steers(config) and config.scorer_mode == "full"
    heavy = config.model in CARD_MODELS or (trains and config.scorer_base != "minilm")
    if heavy and here:
        instead = "use a cluster with GPUs, or --model demo --scorers minilm"
        yield Need("GPU on this machine, which a run of this size needs", GPU_DEVICE.exists(), instead, stops=False)


def hub_cache() -> Path:
    """Return the folder in which the Hugging Face libraries cache models."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def in_cache(name: str) -> bool:
    """Return whether the Hugging Face cache of this machine has a snapshot of a model."""
    snapshots = hub_cache() / ("models--" + name.replace("/", "--")) / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())
