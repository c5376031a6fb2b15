"""A cluster: its runs, and requests to single services, each as a plain and as an asynchronous method."""

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
from poolbench_driver.api.answers import Direction, Embeddings, Explained, Probed, Scores, text_lines
from poolbench_driver.api.steering import (
    SteeredTexts,
    along_concept,
    along_features,
    along_vector,
    opened,
    strengths_of,
    vectors_of,
)
from poolbench_driver.cluster.services import GIVEN, Services, SlowServiceError
from poolbench_driver.queries.plain_values import listed, of_plain_values, plain
from poolbench_driver.queries.texts import TextLine
from poolbench_driver.vectors.units import recommended, unit_of
from poolbench_driver.waiting import waiting

if TYPE_CHECKING:
    from poolbench.pooling.registry import StrategySpec
    from poolbench_driver.api.driving import RunHandle
    from poolbench_driver.api.steering import AnyVector
    from poolbench_driver.config import RunConfig
    from poolbench_driver.queries.arrays import FileVectors
    from poolbench_driver.queries.embedding import Reference

SIDES = ("left", "right")
SINKS = ("exclude", "include")
TASKS = ("concept", "classification", "regression")
#: Notes that must be equal for all vectors of a direction.
MADE_BY = ("model", "model_revision", "layer", "strategy", "params", "sinks")
#: Texts of one request to the scorer: some seconds of work on one core, so that progress shows.
REQUEST_TEXTS = 200
#: A function that is called after each answer with the number of texts in it.
Progress = Callable[[int], None]


def connect(address: str | None = None, token: str | None = None) -> Cluster:
    """Connect to a cluster, and check that its services answer.

    Args:
        address: Address of the services, such as `http://127.0.0.1:8000`. By default, the cluster that the commands
            use: the one of the environment variables `POOLBENCH_*`, of a state folder `.poolbench` in this folder or
            a parent, or of `poolbench-driver login`.
        token: Bearer token of the cluster. By default, the token that is stored for this cluster.

    Returns:
        The cluster.

    Raises:
        ConfigError: No cluster is configured, or no token is stored for the address.
        EndpointError: The services do not answer, or refuse the token.
    """
    from poolbench_driver.cluster.session import STATUS_TIMEOUT_S

    cluster = Cluster(_settings(address, token))
    with suppress(SlowServiceError):  # a busy service answers later
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
    """A cluster. `run` measures, and each other method asks one service. `aio` has the same methods for `await`.

    Attributes:
        settings: The addresses and tokens of the cluster.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        """Store the settings of a cluster, without a request to it. Use `connect` to check that it answers.

        Args:
            settings: Addresses and tokens; by default those of the cluster that the commands use.
        """
        self.settings = settings or ClusterSettings.load(http_only=True)

    @cached_property
    def services(self) -> Services:
        """Return the HTTP client of the services, for requests that have no method in this class."""
        return Services(self.settings)

    @cached_property
    def aio(self) -> AsyncCluster:
        """Return the asynchronous methods of this cluster."""
        return AsyncCluster(self)

    def __repr__(self) -> str:
        return f"Cluster({self.settings.http_address!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}  # a copy opens connections of its own

    def status(self, output: Path | str = "runs") -> dict[str, Any]:
        """Describe the services, the queues and the runs, as `poolbench-driver status --json` does.

        Args:
            output: Folder of the local runs.

        Returns:
            The services, the queues, the dead letters, and the runs of the cluster and of `output`.
        """
        from poolbench_driver.records.overview import overview

        return overview(self.services, Path(output))

    @of_plain_values
    def run(
        self, config: RunConfig | Mapping[str, Any] | Path | str | None = None, *, output: Path | str = "runs",
        display: str | None = None, max_failures: int | None = None, track: Sequence[str] = (), **settings: Any,
    ) -> RunHandle:  # fmt: skip
        """Start a run in a background thread, as the command `run` does.

        The same call continues an interrupted run. For a finished run it does nothing.

        Args:
            config: A `RunConfig`, a dictionary of settings, or the path of a YAML file with settings.
            output: Folder of the runs.
            display: How progress is shown: rich, plain, json or none. The default is rich on a terminal without a
                Python prompt, and plain elsewhere.
            max_failures: Number of failed tasks after which the run stops; None for no limit.
            track: Names of trackers that follow the run: mlflow, wandb, trackio, or one of another package.
            **settings: Settings by name, such as `suite`, `preset` (default: demo), `model`, `concepts` or `layers`.
                They replace those of `config`. A `RunConfig` takes none.

        Returns:
            A handle that waits for the run, lists its events or cancels it.

        Raises:
            ConfigError: A setting is wrong, or the queue and the object store of the cluster are not configured.
            PoolbenchError: The cluster cannot measure this configuration.
        """
        from poolbench_driver.api.driving import configured, start
        from poolbench_driver.cluster.session import open_session

        session = open_session(self.settings)
        return start(configured(config, settings), session, Path(output), display, max_failures, track)

    @of_plain_values
    def embed(
        self, texts: str | Iterable[str | TextLine], *, model: str = "demo", strategy: str = "A1_mean",
        layer: int = -1, params: Mapping[str, Any] | None = None, batch_size: int | None = None,
        padding_side: str = "right", sinks: str = "exclude", idf_texts: Iterable[str] | Reference | None = None,
        progress: Progress | None = None,
    ) -> Embeddings:  # fmt: skip
        """Pool the hidden states of texts into one vector per text.

        Args:
            texts: One text or several.
            model: Preset id, model folder or Hugging Face id.
            strategy: Id of the pooling strategy, such as `W2_last_k`.
            layer: Block of the model from 0; a negative number counts from the last block.
            params: Parameters of the strategy, such as `{"k": 4}`.
            batch_size: Largest number of texts in a forward pass. It does not change the vectors.
            padding_side: Side on which short texts are padded, right or left. It does not change the vectors.
            sinks: Whether attention sinks are left out (exclude) or pooled (include).
            idf_texts: Texts from which `L5_keyword` counts document frequencies; by default `texts`.
            progress: A function that is called after each answer with the number of texts in it.

        Returns:
            One vector per text. A text that failed has no vector, but a status and a reason.

        Raises:
            ConfigError: The strategy, a parameter, `padding_side` or `sinks` is unknown, or `idf_texts` is given for a
                strategy that reads no annotation.
            InputError: No text could be embedded.
        """
        from poolbench.pooling.registry import STRATEGIES
        from poolbench_driver.queries.embedding import Embedder

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

    @of_plain_values
    def explain(
        self, text: str, *, model: str = "demo", strategy: str = "A1_mean", layer: int = -1,
        direction: AnyVector | None = None,
    ) -> Explained:  # fmt: skip
        """Explain the vector of a text by the weight of each token.

        Args:
            text: One text.
            model: Preset id, model folder or Hugging Face id.
            strategy: Id of the pooling strategy.
            layer: Block of the model from 0; a negative number counts from the last block.
            direction: Direction on which the vector is projected: a vector file, a vector of a run (`Run.direction`),
                an answer of `direction`, or numbers [width]. With a direction, each token has a contribution to the
                projection.

        Returns:
            The tokens with their weights and contributions.

        Raises:
            InputError: The text is not a string, or the direction cannot be read or has another width.
        """
        from poolbench.pooling.registry import STRATEGIES
        from poolbench_driver.queries.embedding import Embedder, Reference

        if not isinstance(text, str):
            raise InputError(f"the text is a {type(text).__name__}; give one text")
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
        """Fit linear probes on vectors, and measure how well they read the labels.

        A concept is measured by D1. Other tasks are measured by scores, selectivity and code length.

        Args:
            vectors: Vectors [n, width]: an answer of `embed`, or an array. A row that is not finite counts as missing.
            labels: Labels [n]: 0 and 1, names of classes, or real numbers.
            task: concept, classification or regression. By default, the labels decide.
            groups: Document of each vector [n]. Vectors of one document are in the same fold.
            pairs: Matched pair of each vector [n]; empty for a vector without a pair.
            domains: Domain of each vector [n], for the leave-one-domain-out figure.
            splits: Split of each vector [n]: train, dev or test. By default, splits are drawn at random.
            words: Word type of each vector [n]. The control task then gives each word type a random label.

        Returns:
            The figures, and the score and the fold of each vector.

        Raises:
            InputError: The task is unknown, or an array has a wrong length or type.
        """
        from poolbench_driver.queries.arrays import labels_in, names_in

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
        """Construct a direction of unit norm from the vectors of two classes, for `steer` and `explain`.

        Give either `negatives` or `labels`.

        Args:
            positives: Vectors [n, width] of the positive class; with `labels`, the vectors of both classes.
            negatives: Vectors [m, width] of the negative class.
            labels: Label of each vector [n]: 1 for positive, 0 for negative.
            method: Construction: C1, C2, C3, C4, LDA or C1_centred.
            seed: Seed of the random pairs of C4.

        Returns:
            The direction, with the number of vectors of each class that it was made from.

        Raises:
            InputError: The classes were embedded in different ways, a length is wrong, or both or neither of
                `negatives` and `labels` are given.
        """
        import numpy as np

        from poolbench_driver.queries.arrays import labels_in

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
        body = {"vectors": [rows[index] for index in usable], "labels": used, "method": method, "seed": plain(seed)}
        answer = self.services.post("prober", "direction", body)
        counts = used.count(1), used.count(0), len(rows) - len(usable)
        numbers = np.array(answer["direction"], np.float32)
        return Direction(numbers, answer["method"], answer["raw_norm"], *counts, first.made_by)

    @of_plain_values
    def score(
        self, texts: str | Iterable[str | TextLine], scorers: str | Sequence[str], *, progress: Progress | None = None
    ) -> Scores:
        """Score how likely each text expresses a concept, by trained or imported scorers.

        Args:
            texts: One text or several.
            scorers: One scorer or several. A name is a concept, `concept@base`, or an id or key that
                `poolbench-driver ls scorers` lists.
            progress: A function that is called after each answer with the number of texts in it.

        Returns:
            One row per text, and one column of P(concept) per scorer.

        Raises:
            InputError: There are no texts or no scorers, or a text is empty.
            PoolbenchError: A scorer does not exist.
        """
        lines, names = text_lines(texts), [scorers] if isinstance(scorers, str) else listed(scorers, "scorers")
        names = list(dict.fromkeys(names))
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

    @of_plain_values
    def steer(
        self, prompts: str | Iterable[str], *, concept: str | None = None, strategy: str | None = None,
        layer: int | None = None, run: str | None = None, strength: float | Sequence[float] | None = None,
        vector: AnyVector | None = None, unit: str | None = None, edits: Sequence[Mapping[str, Any]] = (),
        sae: str | None = None, subject: str | None = None, features: Sequence[int] | None = None,
        read: str | None = None, positions: str | int | None = None, model: str = "demo", max_tokens: int = 40,
        temperature: float = 0.0, top_p: float = 1.0, seed: int = 0, stop: str | Sequence[str] | None = None,
        stream: bool = False, output: Path | str = "runs",
    ) -> SteeredTexts:  # fmt: skip
        """Continue prompts, steered along one direction or unsteered.

        Give at most one of `concept`, `vector`, `sae` and `edits`. Without any, the texts are unsteered.

        Args:
            prompts: One prompt or several.
            concept: Steer along the direction of this concept from a run.
            strategy: Pooling strategy of the concept's direction; by default the best one of the run.
            layer: Layer to steer at. By default, the layer of the best direction, of the vector or of the autoencoder.
            run: Id of the run that made the direction or chose the features; by default the latest run of the model.
            strength: Strength of the steering, in median residual norms of the layer unless `unit` says otherwise.
                With a list, each prompt has one unsteered text and one text per strength. By default, the strength
                that the card of `vector` recommends, or 1 in absolute units.
            vector: Steer along this vector: a file that `vectors import` reads, a vector of a run (`Run.direction`), an
                answer of `direction`, or numbers [width].
            unit: Unit of the strength of `vector`, residual_norm or absolute. By default, the unit of the card. Without
                a card, it is absolute for a file and residual_norm for all others.
            edits: Steer by these edits, in the form that the steerer's README defines.
            sae: Steer along features of this autoencoder, which `features` or `subject` selects.
            subject: Subject whose features a run has chosen.
            features: Numbers of features of the autoencoder.
            read: Score each token of the texts along the direction of this concept.
            positions: Positions to steer: generated, all, prompt, or the number of the first position, from 0. By
                default, the positions of the card of `vector`, or generated.
            model: Preset id, model folder or Hugging Face id.
            max_tokens: Largest number of new tokens per text.
            temperature: Sampling temperature; 0 is greedy decoding.
            top_p: Share of the probability from which tokens are sampled.
            seed: Seed of the sampling.
            stop: One text or several at which the generation ends.
            stream: Whether iterating over the answer yields pieces during the generation. Otherwise the method returns
                when all texts are complete. Several strengths are never streamed.
            output: Folder of the runs in which `subject` is looked up.

        Returns:
            The texts, each with a receipt of the positions that were changed.

        Raises:
            InputError: There are no prompts, two directions are given, or a direction has no strength.
            NotFoundError: No run has the direction.
            RestrictedError: The concept is sensitive.
        """
        texts, stops = _texts_in(prompts, "prompts"), _texts_in(() if stop is None else stop, "stop")
        edits, features = listed(edits, "edits"), None if features is None else listed(features, "features")
        num_along = (concept is not None) + (sae is not None) + (vector is not None)
        if not texts:
            raise InputError("nothing to continue: give a prompt, or several")
        if wrong := [edit for edit in edits if not isinstance(edit, Mapping)]:
            raise InputError(f"an edit is {type(wrong[0]).__name__}; give dictionaries with vector, layer and alpha")
        if sae is None and (subject, features) != (None, None):
            raise InputError("subject and features need sae, the autoencoder whose features they mean")
        if num_along + bool(edits) > 1:
            raise InputError("concept, sae, vector and edits are two directions: give one of them")
        if concept is None and (strategy is not None or (run is not None and sae is None)):
            raise InputError("strategy and run belong to a concept, run also to an autoencoder")
        if strength is not None and not num_along:
            raise InputError("a strength belongs to a concept, an autoencoder or a vector")
        vector, served = opened(vector), list_folder(model)
        card = getattr(vector, "card", None)
        positions = positions if positions is not None else card.apply.positions if card else "generated"
        body: dict[str, Any] = {"prompt": texts, "model": served, "max_tokens": max_tokens, "temperature": temperature}
        body |= {"top_p": top_p, "seed": seed, "stop": stops or None}
        body |= {} if read is None else {"reading": {"concept": read}}
        body |= {"steering": {"edits": edits, "positions": positions}} if edits else {}
        along, strengths = None, list[float | None]([None])
        if num_along:
            unit = unit_of(vector, unit)
            strength = recommended(vector, unit) if strength is None else strength
            steered = strengths_of(strength)
            strengths = [*([] if isinstance(strength, int | float) else [0.0]), *steered]
            if concept is not None:
                names = {"concept": concept, "strategy": strategy, "layer": layer, "run": run}
                along = along_concept(self.services, _obtained(model), names, positions, steered)
            elif sae is not None:
                along = along_features(served, sae, subject, features, layer, run, Path(output), positions)
            elif vector is not None:
                along = along_vector(vector, layer, unit, positions, served, steered)
        _obtained(model)
        result = SteeredTexts(self.services, body, along, strengths, stream=stream and len(strengths) == 1)
        if not stream:
            with _said(f"{len(texts) * len(strengths)} texts: waiting for the steerer"):
                result.to_pylist()
        return result


def _texts_in(texts: Any, name: str) -> list[str]:
    """Return one text or several as a list. Raise InputError, with `name` in the message, if an entry is not a text."""
    entries = [texts] if isinstance(texts, str) else listed(texts, name)
    if wrong := [entry for entry in entries if not isinstance(entry, str)]:
        raise InputError(f"{name}: {type(wrong[0]).__name__} is not a text")
    return entries


@contextmanager
def _said(message: str, progress: Progress | None = None) -> Iterator[Progress]:
    """Print a message while a request is in progress, unless the caller shows the progress."""
    if progress is not None:
        yield progress
        return
    with waiting(f"{message}; a model that is not loaded yet takes a while"):
        yield lambda _: None


def _obtained(model: str) -> str:
    """Return the name that the services use for a model. A preset that must be converted is converted first."""
    from poolbench_driver.models import obtain

    obtain(model)
    return list_folder(model)


def _reference(
    spec: StrategySpec, lines: Sequence[TextLine], idf_texts: Iterable[str] | Reference | None
) -> Reference | None:
    """Return the texts for document frequencies, or None if the strategy reads no annotation."""
    from poolbench_driver.queries.embedding import Reference

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


def _vectors(vectors: Any) -> FileVectors:
    """Return the vectors of a file, of `embed` or of an array. Raise InputError for any other value."""
    from poolbench_driver.queries.arrays import FileVectors, checked_array

    if isinstance(vectors, FileVectors):
        return vectors
    if isinstance(vectors, Embeddings):
        return FileVectors(vectors.vectors.astype("float64"), vectors.notes)
    return FileVectors(checked_array(vectors, "vectors", 2).astype("float64"), {})


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _twin(
    method: Callable[Concatenate[Cluster, _P], _R],
) -> Callable[Concatenate[AsyncCluster, _P], Coroutine[Any, Any, _R]]:
    """Make an asynchronous method that calls a method of `Cluster` in a thread."""

    @wraps(method)
    async def call(self: AsyncCluster, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.to_thread(method, self.cluster, *args, **kwargs)

    return call


class AsyncCluster:
    """The methods of a cluster for `await`.

    Many calls may be awaited at the same time. Cancelling a call stops the waiting, but not the work on the cluster.

    Attributes:
        cluster: The cluster with the plain methods.
    """

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
