"""What a run needs and this machine lacks, and the flag that replaces it. Nothing is replaced by itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from poolbench.concepts import CONCEPTS
from poolbench.config import MODEL_PRESETS, PUBLISHED_CORPUS, CorpusConfig, ModelRef, RunConfig
from poolbench.errors import ConfigError, PoolbenchError
from poolbench_driver.cluster.session import Session
from poolbench_driver.corpora.hub import PREFIX
from poolbench_driver.models import ModelInfo, describe_model
from poolbench_driver.reproduction import GPU_DEVICE, IMPORT_PUBLISHED, NO_FOLDER, hub_cache

_CARD = [ref.id for ref in MODEL_PRESETS.values() if ref.card_layers]


@dataclass(frozen=True)
class Missing:
    """One thing that is not there.

    Attributes:
        what: What is missing, with the reason.
        instead: The flag that replaces it, or what makes it available.
        stops: Whether the run cannot start without it.
    """

    what: str
    instead: str
    stops: bool = True

    def __str__(self) -> str:
        return f"{self.what}; {self.instead}"


def missing_of(config: RunConfig, session: Session) -> list[Missing]:
    """Return what a run lacks, as far as it can be known before it starts."""
    local = urlsplit(session.settings.http_address or "").hostname in ("127.0.0.1", "localhost", "::1")
    found = _passages(config) + (_scorers(config, local=local) if {"d2", "d3"} & set(config.metrics) else [])
    return found + _device(config, local=local)


def require_all(found: Iterable[Missing]) -> None:
    """Raise ConfigError that names everything without which a run cannot start."""
    if stopping := list(dict.fromkeys(str(each) for each in found if each.stops)):
        raise ConfigError(f"the run cannot start, {len(stopping)} missing: {' | '.join(stopping)}")


def with_stand_ins(config: RunConfig, session: Session) -> tuple[RunConfig, ModelInfo | None, list[Missing]]:
    """Return settings and model that a dry run can count with, and what they stand in for.

    Planted passages stand in for the published corpus, which are as many; and the known shape for a model of the card.
    """
    counted, found, model = config, list[Missing](), None
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
            found = [_absent(ref, error)]
    return counted, model, found


def _absent(ref: ModelRef, error: PoolbenchError) -> Missing:
    if ref.is_made:
        return Missing(
            f"model {ref.id} is not here yet", "a run on a local cluster fetches and converts it first", stops=False
        )
    return Missing(f"{ref.source} ({error})", "make it available to the extractor, or use --model demo")


def _passages(config: RunConfig) -> list[Missing]:
    source, asked = config.corpus.source, config.concepts or [concept.id for concept in CONCEPTS.all()]
    names = [name for name in asked if name != "all" and not CONCEPTS.get(name).corpus]
    names = [concept.id for concept in CONCEPTS.all()] if "all" in asked else names
    folder = Path(source)
    if source in NO_FOLDER or not names:
        return []
    if not folder.is_dir():
        make = (
            f"poolbench-driver corpus import {source} corpora/NAME" if source.startswith(PREFIX) else IMPORT_PUBLISHED
        )
        get = f"get it (`{make}`), or " if source == PUBLISHED_CORPUS or source.startswith(PREFIX) else ""
        return [Missing(f"no corpus in {source}", f"{get}use --corpus with another folder, real or planted")]
    there = [name for name in names if (folder / name).is_dir()]
    found = []
    if lacking := [name for name in names if name not in there]:
        withheld = " (the published corpus withholds sensitive ones)" if source == PUBLISHED_CORPUS else ""
        instead = f"--concepts {','.join(there)}" if there else "--corpus with another folder, real or planted"
        found.append(Missing(f"no passages of {', '.join(lacking)} in {source}{withheld}", f"use {instead}"))
    if config.scorer_mode != "import" and {"d2", "d3"} & set(config.metrics):
        untrained = [name for name in there if not (folder / name / "scorer_pos.jsonl").is_file()]
        what = f"no passages to train scorers of {', '.join(untrained)} in {source}: their D2 and D3 will be null"
        found += [Missing(what, "use --scorers published", stops=False)] if untrained else []
    return found


def _scorers(config: RunConfig, *, local: bool) -> list[Missing]:
    base = config.scorer_base
    if base == "minilm" or Path(base).expanduser().is_dir() or in_cache(base):
        return []
    offline = local and os.environ.get("HF_HUB_OFFLINE") != "0"  # a local cluster starts without the hub
    others = {"published": "--scorers published, ", "bert": "--scorers bert, "}
    others.pop("published" if config.scorer_mode == "import" else "bert")
    instead = f"put it there, or use {''.join(others.values())}--scorers minilm"
    return [Missing(f"scorers: {base} is not in the Hugging Face cache of this machine", instead, stops=offline)]


def _device(config: RunConfig, *, local: bool) -> list[Missing]:
    found = []
    if config.budget.name == "card" and config.model == "demo":
        what = "model demo is not a model of the card"
        found.append(Missing(what, f"use --model {','.join(_CARD)}", stops=False))
    trains = bool({"d2", "d3"} & set(config.metrics)) and config.scorer_mode == "full"
    heavy = config.model in _CARD or (trains and config.scorer_base != "minilm")
    if heavy and local and not GPU_DEVICE.exists():
        what = "no GPU on this machine, and a run of this size needs one"
        instead = "use a cluster with GPUs, or --model demo --scorers minilm"
        found.append(Missing(what, instead, stops=False))
    return found


def in_cache(name: str) -> bool:
    """Return whether the Hugging Face cache of this machine has a snapshot of a model."""
    snapshots = hub_cache() / ("models--" + name.replace("/", "--")) / "snapshots"
    return snapshots.is_dir() and any(snapshots.iterdir())


def lines(found: Sequence[Missing]) -> list[str]:
    """Return one line for each thing that is missing, each once."""
    marks = {True: "missing", False: "note"}
    return list(dict.fromkeys(f"{marks[each.stops]}: {each}" for each in found))
