"""A cluster as Python sees it: its runs, and requests to one service, each with an asynchronous twin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from poolbench.errors import ConfigError, InputError
from poolbench.model_folders.folders import list_folder
from poolbench.settings import ClusterSettings
from poolbench_driver.adhoc.texts import TextLine
from poolbench_driver.api.answers import Direction, Embeddings, Explained, Probed, Scores, text_lines
from poolbench_driver.api.steered import (
    SteeredTexts,
    along_concept,
    along_features,
    along_vector,
    strengths_of,
    vectors_of,
)
from poolbench_driver.cluster.services import GIVEN, Services, SlowServiceError
from poolbench_driver.waiting import waiting

if TYPE_CHECKING:
    from poolbench.pooling.registry import StrategySpec
    from poolbench_driver.adhoc.arrays import Vectors
    from poolbench_driver.adhoc.embedding import Reference
    from poolbench_driver.api.driving import RunHandle
    from poolbench_driver.api.steered import AnyVector
    from poolbench_driver.config import RunConfig

SIDES = ("left", "right")
SINKS = ("exclude", "include")
TASKS = ("concept", "classification", "regression")
#: What vectors of one direction have in common.
MADE_BY = ("model", "model_revision", "layer", "strategy", "params", "sinks")
#: Texts of one request to the scorer: some seconds of work on one core, so that progress shows.
REQUEST_TEXTS = 200
#: Takes the number of texts that an answer has covered.
Progress = Callable[[int], None]


def connect(address: str | None = None, token: str | None = None) -> Cluster:
    """Return a cluster whose services answer.

    Args:
        address: Of the services, such as `http://127.0.0.1:8000`; by default the cluster that commands reach, of the
            variables `POOLBENCH_*`, of the state folder `.poolbench` here or above, or of `poolbench-driver login`.
        token: Its bearer token; by default the one that belongs to the address.

    Raises:
        ConfigError: Nothing names a cluster, or no token belongs to the address.
        EndpointError: The services do not answer, or refuse the token.
    """
    from poolbench_driver.cluster.session import STATUS_TIMEOUT_S

    cluster = Cluster(_settings(address, token))
    with suppress(SlowServiceError):  # it is busy, and answers later
        cluster.services.health("pooler", timeout_s=STATUS_TIMEOUT_S)
    return cluster


def _settings(address: str | None, token: str | None) -> ClusterSettings:
    try:
        settings = ClusterSettings.load(http_only=True)
    except ConfigError:
        if address is None:
            raise
        settings = ClusterSettings("", "")
    if address is not None and (address := address.rstrip("/")) != settings.http_address:
        if token is None:
            raise ConfigError(f"no token for {address} is known here: give connect(address, token)")
        settings = ClusterSettings("", "", address, http_from=GIVEN)
    return settings if token is None else replace(settings, token=token, token_from=GIVEN)


class Cluster:
    """A cluster: `run` measures, and the other verbs ask one service each. `aio` has all of them for `await`."""

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        """Take where a cluster is, by default as the commands do; nothing is asked yet."""
        self.settings = settings or ClusterSettings.load(http_only=True)

    @cached_property
    def services(self) -> Services:
        """Return the services over HTTP, for verbs that have no method here."""
        return Services(self.settings)

    @cached_property
    def aio(self) -> AsyncCluster:
        """Return the same verbs for `await`."""
        return AsyncCluster(self)

    def __repr__(self) -> str:
        return f"Cluster({self.settings.http_address!r})"

    def status(self, output: Path | str = "runs") -> dict[str, Any]:
        """Return services, queues, dead letters, and the runs of the cluster and of a folder, as `status --json`."""
        from poolbench_driver.records.overview import overview

        return overview(self.services, Path(output))

    def run(
        self, config: RunConfig | Mapping[str, Any] | Path | str | None = None, *, output: Path | str = "runs",
        display: str = "plain", max_failures: int | None = None, track: Sequence[str] = (), **settings: Any,
    ) -> RunHandle:  # fmt: skip
        """Start to measure, in a thread of this process, as the command `run` does; the same call continues a run.

        Args:
            config: A configuration, the settings of one, or a YAML file of settings.
            output: Folder that runs lie in.
            display: How progress is shown: rich, plain, json or none.
            max_failures: Failed tasks after which the run stops; None for no limit.
            track: Trackers that follow the run: mlflow, wandb, trackio, or those of other packages.
            settings: Any settings: `suite`, `preset` (default: demo), `model`, `concepts`, `layers` and so on.

        Raise ConfigError for a wrong setting, or where the queue and the store of the cluster are not known.
        """
        from poolbench_driver.api.driving import configured, start
        from poolbench_driver.cluster.session import open_session

        session = open_session(self.settings)
        return start(configured(config, settings), session, Path(output), display, max_failures, track)

    def embed(
        self, texts: str | Iterable[str | TextLine], *, model: str = "demo", strategy: str = "A1_mean",
        layer: int = -1, params: Mapping[str, Any] | None = None, batch_size: int | None = None,
        padding_side: str = "right", sinks: str = "exclude", idf_texts: Iterable[str] | Reference | None = None,
        progress: Progress | None = None,
    ) -> Embeddings:  # fmt: skip
        """Return the vectors of texts by a model, layer and pooling strategy; a text that fails has none.

        Args:
            model: Preset id, folder or Hugging Face id.
            layer: Block; negative ones count from the end.
            params: Of the strategy, such as `{"k": 4}`.
            batch_size: Most texts of a forward pass; it changes the speed alone, as `padding_side` does.
            sinks: Whether attention sinks are left out: exclude, or include.
            idf_texts: Texts that document frequencies come from (L5); by default the texts themselves.
            progress: Takes the number of texts that each answer has covered.

        Raise ConfigError for an unknown name, and InputError if no text could be embedded.
        """
        from poolbench.pooling.registry import STRATEGIES
        from poolbench_driver.adhoc.embedding import Embedder

        spec, lines = STRATEGIES.get(strategy), text_lines(texts)
        spec.resolve(dict(params or {}))
        for name, value, allowed in (("padding side", padding_side, SIDES), ("sinks", sinks, SINKS)):
            if value not in allowed:
                raise ConfigError(f"{name} {value!r} is unknown; allowed: {', '.join(allowed)}")
        settings = {
            "model": _obtained(model), "strategy": strategy, "layer": layer, "params": dict(params or {}),
            "batch_size": batch_size, "padding_side": padding_side, "sinks": sinks,
        }  # fmt: skip
        embedder = Embedder(self.services, settings, _reference(spec, lines, idf_texts))
        with _said(f"embedding {len(lines)} texts", progress) as covered:
            return Embeddings(embedder.run(lines, covered))

    def explain(
        self, text: str, *, model: str = "demo", strategy: str = "A1_mean", layer: int = -1,
        direction: AnyVector | None = None,
    ) -> Explained:  # fmt: skip
        """Return what each token of a text adds to its vector: its weight, and its part of a projection.

        The projection is on a `direction`: a file, a vector of a run, a direction, or numbers [width]. Raise InputError
        for one that cannot be read, or has another width.
        """
        from poolbench.pooling.registry import STRATEGIES
        from poolbench_driver.adhoc.embedding import Embedder, Reference

        settings = {"model": _obtained(model), "strategy": strategy, "layer": layer}
        lines = [TextLine(1, text)]
        reference = Reference.of(lines, "the text") if STRATEGIES.get(strategy).reads_annotations else None
        numbers = None if direction is None else vectors_of(direction, layer, model)[layer]
        with _said("explaining a text"):
            return Explained(text, Embedder(self.services, settings, reference).explain(text, numbers))

    def probe(
        self, vectors: Any, labels: Any, *, task: str | None = None, groups: Any = None, pairs: Any = None,
        domains: Any = None, splits: Any = None, words: Any = None,
    ) -> Probed:  # fmt: skip
        """Return D1 of vectors, or scores, selectivity and code length of another task.

        Args:
            vectors: [n, width]: what `embed` returns, or an array; a row that is not finite is missing.
            labels: 0 and 1, classes, or real values [n].
            task: concept, classification or regression; by default by the labels.
            groups: Documents [n], which are never split.
            pairs: Matched pairs [n], empty for none.
            domains: Domains [n], for leave-one-domain-out.
            splits: train, dev or test [n]; drawn without them.
            words: Word types [n]: control labels for each.

        Raise InputError where lengths or types do not fit.
        """
        from poolbench_driver.adhoc.arrays import labels_in, names_in

        if task is not None and task not in TASKS:
            raise InputError(f"task is {task!r}; allowed: {', '.join(TASKS)}")
        body: dict[str, Any] = {"vectors": _vectors(vectors).rows()}
        body["labels"] = labels_in(labels, "labels", are_classes=task != "regression")
        columns = {"groups": groups, "splits": splits, "words": words, "domains": domains}
        body |= {name: names_in(column, name) for name, column in columns.items() if column is not None}
        if pairs is not None:
            body["pairs"] = [name or None for name in names_in(pairs, "pairs", may_lack=True)]
        body |= {} if task is None else {"task": task}
        body |= {} if words is None else {"task_params": {"control": "word_type"}}
        with _said(f"probing {len(body['labels'])} vectors"):
            return Probed(self.services.post("prober", "probe", body))

    def direction(
        self, positives: Any, negatives: Any = None, *, labels: Any = None, method: str = "C1", seed: int = 0
    ) -> Direction:
        """Return a direction made of the vectors of two classes, of unit norm, for `steer` and `explain`.

        Args:
            positives: Vectors [n, width] of one class, or with `labels` of both.
            negatives: Those of the other class.
            labels: 1 and 0 [n].
            method: Construction: C1, C2, C3, C4, LDA or C1_centred.
            seed: Of random pairs (C4).

        Raise InputError if the classes were embedded in different ways, or lengths do not fit.
        """
        import numpy as np

        from poolbench_driver.adhoc.arrays import labels_in

        if (negatives is None) == (labels is None):
            raise InputError("give the vectors of the other class, or the labels of both: one of the two")
        first = _vectors(positives)
        rows = first.rows()
        if negatives is not None:
            other = _vectors(negatives)
            apart = [name for name in MADE_BY if first.made_by.get(name) != other.made_by.get(name)]
            if apart and first.made_by and other.made_by:
                raise InputError(f"the two classes differ in {', '.join(apart)}: embed both in the same way")
            classes: list[Any] = [1] * len(rows) + [0] * len(other.matrix)
            rows += other.rows()
        else:
            classes = labels_in(labels, "labels")
            if len(classes) != len(rows):
                raise InputError(f"{len(classes)} labels for {len(rows)} vectors; one each is needed")
        usable = [index for index, row in enumerate(rows) if row is not None]
        used = [classes[index] for index in usable]
        body = {"vectors": [rows[index] for index in usable], "labels": used, "method": method, "seed": seed}
        answer = self.services.post("prober", "direction", body)
        counts = used.count(1), used.count(0), len(rows) - len(usable)
        numbers = np.array(answer["direction"], np.float32)
        return Direction(numbers, answer["method"], answer["raw_norm"], *counts, first.made_by)

    def score(
        self, texts: str | Iterable[str | TextLine], scorers: str | Sequence[str], *, progress: Progress | None = None
    ) -> Scores:
        """Return P(concept) of texts by trained or imported scorers.

        Args:
            scorers: Concept, `concept@base`, or id or key of `ls scorers`; several score at once.
            progress: Takes the number of texts that each answer has covered.

        Raise InputError for an empty text, and PoolbenchError for a scorer that does not exist.
        """
        lines, names = text_lines(texts), list(dict.fromkeys([scorers] if isinstance(scorers, str) else scorers))
        if not names:
            raise InputError("no scorer: give a concept such as contrast, or several; `ls scorers` lists what there is")
        if empty := [line.number for line in lines if not line.text.strip()]:
            raise InputError(f"text {empty[0]} is empty: nothing to score")
        whole: list[dict[str, Any]] = []
        with _said(f"scoring {len(lines)} texts", progress) as covered:
            for start in range(0, len(lines), REQUEST_TEXTS):
                part = lines[start : start + REQUEST_TEXTS]
                body = {"texts": [line.text for line in part], "scorers": names}
                answer = self.services.post("scorer", "score", body)["scorers"]
                whole = whole or [{**one, "name": name, "scores": []} for name, one in zip(names, answer, strict=True)]
                for scorer, one in zip(whole, answer, strict=True):
                    scorer["scores"] += one["scores"]
                covered(len(part))
        return Scores(lines, whole)

    def steer(
        self, prompts: str | Iterable[str], *, concept: str | None = None, strategy: str | None = None,
        layer: int | None = None, run: str | None = None, strength: float | Sequence[float] | None = None,
        vector: AnyVector | None = None, unit: str | None = None, edits: Sequence[Mapping[str, Any]] = (),
        sae: str | None = None, subject: str | None = None, features: Sequence[int] | None = None,
        read: str | None = None, positions: str | int | None = None, model: str = "demo", max_tokens: int = 40,
        temperature: float = 0.0, top_p: float = 1.0, seed: int = 0, stop: str | Sequence[str] | None = None,
        stream: bool = False,
    ) -> SteeredTexts:  # fmt: skip
        """Return texts that continue prompts, steered along one direction or unsteered, each with its receipt.

        Args:
            concept: Steer by the direction of this concept from the latest run of the model, by the best `strategy`
                and `layer`, or by those of a `run`.
            strength: In residual norms of the layer. With a list, each prompt has a text at each, the unsteered one
                first. By default that which the card of a `vector` recommends.
            vector: Steer by a file that `vectors import` reads, a vector of `Run.direction`, what `direction` returns,
                or numbers [width], at a `layer`; strengths are in `unit`, residual_norm or absolute.
            edits: Steer by edits as the steerer's README has them.
            sae: Steer by `features` of an autoencoder, or by those of a `subject` in the latest run.
            read: Read the direction of this concept along: each token of a text has a score.
            positions: generated, all, prompt, or the first position; by default those of the card, or generated.
            temperature: 0 is greedy.
            stop: A text ends at one of these.
            stream: Whether iterating yields pieces while texts are generated; else all texts are complete.

        Raise InputError for two directions, or one without a strength, NotFoundError if no run has it, and
        RestrictedError for a sensitive concept.
        """
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        num_along = (concept is not None) + (sae is not None) + (vector is not None)
        if not texts:
            raise InputError("nothing to continue: give a prompt, or several")
        if sae is None and (subject, features) != (None, None):
            raise InputError("subject and features need sae, the autoencoder whose features they mean")
        if num_along + bool(edits) > 1:
            raise InputError("concept, sae, vector and edits are two directions: give one of them")
        if concept is None and (strategy is not None or (run is not None and sae is None)):
            raise InputError("strategy and run belong to a concept, run also to an autoencoder")
        if strength is not None and not num_along:
            raise InputError("a strength belongs to a concept, an autoencoder or a vector")
        served, card = list_folder(model), getattr(vector, "card", None)
        positions = positions if positions is not None else card.apply.positions if card else "generated"
        body: dict[str, Any] = {"prompt": texts, "model": served, "max_tokens": max_tokens, "temperature": temperature}
        body |= {"top_p": top_p, "seed": seed, "stop": [stop] if isinstance(stop, str) else list(stop or ()) or None}
        body |= {} if read is None else {"reading": {"concept": read}}
        body |= {"steering": {"edits": [dict(edit) for edit in edits], "positions": positions}} if edits else {}
        along, strengths = None, list[float | None]([None])
        if num_along:
            strength = card.strength.recommended if strength is None and card else strength
            steered = strengths_of(strength)
            strengths = [*([0.0] if isinstance(strength, Iterable) else []), *steered]
            if concept is not None:
                names = {"concept": concept, "strategy": strategy, "layer": layer, "run": run}
                along = along_concept(self.services, _obtained(model), names, positions, steered)
            elif sae is not None:
                along = along_features(served, sae, subject, features, layer, run, positions)
            elif vector is not None:
                along = along_vector(vector, layer, unit, positions, served)
        _obtained(model)
        result = SteeredTexts(self.services, body, along, strengths, stream=stream and len(strengths) == 1)
        if not stream:
            with _said(f"{len(texts) * len(strengths)} texts: waiting for the steerer"):
                result.to_pylist()
        return result


@contextmanager
def _said(message: str, progress: Progress | None = None) -> Iterator[Progress]:
    """Say what is waited for, unless the caller shows the progress."""
    if progress is not None:
        yield progress
        return
    with waiting(f"{message}; a model that is not loaded yet takes a while"):
        yield lambda _: None


def _obtained(model: str) -> str:
    """Return how services name a model, which is made on this machine if it is one that is."""
    from poolbench_driver.models import obtain

    obtain(model)
    return list_folder(model)


def _reference(
    spec: StrategySpec, lines: Sequence[TextLine], idf_texts: Iterable[str] | Reference | None
) -> Reference | None:
    """Return the texts of the document frequencies; None where the strategy reads no annotation."""
    from poolbench_driver.adhoc.embedding import Reference

    if not spec.reads_annotations:
        if idf_texts is not None:
            raise ConfigError(
                f"texts for document frequencies: strategy {spec.id} reads no annotations; leave them out"
            )
        return None
    if isinstance(idf_texts, Reference):
        return idf_texts
    if idf_texts is None:
        return Reference.of(lines, "the input")
    return Reference.of(text_lines(idf_texts), "idf_texts")


def _vectors(vectors: Any) -> Vectors:
    """Return vectors of a file, of `embed`, or of an array. Raise InputError for anything else."""
    from poolbench_driver.adhoc.arrays import Vectors, checked_array

    if isinstance(vectors, Vectors):
        return vectors
    if isinstance(vectors, Embeddings):
        return Vectors(vectors.vectors.astype("float64"), vectors.notes)
    return Vectors(checked_array(vectors, "vectors", 2).astype("float64"), {})


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _twin(
    method: Callable[Concatenate[Cluster, _P], _R],
) -> Callable[Concatenate[AsyncCluster, _P], Coroutine[Any, Any, _R]]:
    """Return a method that awaits another one, which a thread calls."""

    @wraps(method)
    async def call(self: AsyncCluster, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.to_thread(method, self.cluster, *args, **kwargs)

    return call


class AsyncCluster:
    """The verbs of a cluster for `await`; many may be awaited at once. A cancelled one stops waiting, not the work."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    run = _twin(Cluster.run)
    status = _twin(Cluster.status)
    embed = _twin(Cluster.embed)
    explain = _twin(Cluster.explain)
    probe = _twin(Cluster.probe)
    direction = _twin(Cluster.direction)
    score = _twin(Cluster.score)
    steer = _twin(Cluster.steer)
