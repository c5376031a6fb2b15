"""Prompts continued under steering vectors: what is sent to the steerer, and the texts as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from poolbench.errors import InputError, unknown_name_message
from poolbench_driver.api.answers import Direction
from poolbench_driver.api.shown import Rows, Shown, part_of

if TYPE_CHECKING:
    import numpy as np

    from poolbench_driver.cluster.services import Services
    from poolbench_driver.contract.page import Answer, Part
    from poolbench_driver.vectors.card import Vector

    #: A file that `vectors import` reads, a vector of a run, a direction, or numbers [width].
    AnyVector = Path | str | Vector | Direction | np.ndarray | Sequence[float]

#: Units of strengths, and the field of an edit that has one.
UNITS = {"absolute": "alpha", "residual_norm": "strength"}
LOADING = "waiting for the steerer; a model that is not loaded yet takes a while"
_VERB = "v1/completions"


@dataclass(frozen=True)
class Piece:
    """A piece of a text that is being generated; the last one of a text has the reason of its end, and the receipt."""

    prompt: int  # place of the prompt, from 0
    text: str
    strength: float | None = None
    finish_reason: str | None = None
    receipt: dict[str, Any] | None = None
    reading: dict[str, Any] | None = None  # the projections of these tokens on the direction that is read along

    @classmethod
    def of(cls, choice: dict[str, Any], strength: float | None = None) -> Piece:
        """Return a choice of a completion, or of a chunk of one."""
        last = choice["finish_reason"], choice.get("steering_receipt")
        return cls(choice["index"], choice["text"], strength, *last, choice.get("reading"))


@dataclass(frozen=True)
class Steering:
    """Along what texts are steered."""

    at: Callable[[float], dict[str, Any]]  # the field `steering` of a request at a strength
    facts: dict[str, Any]  # what identifies the direction to a reader
    notes: Sequence[str] = ()  # which one it is, and strengths beyond those at which the texts of its run were fluent


class SteeredTexts(Shown):
    """Texts that continue prompts, each with its receipt. Iterating yields pieces while they are generated.

    What needs whole texts waits for the rest of them.
    """

    def __init__(
        self, services: Services, body: dict[str, Any], along: Steering | None, strengths: Sequence[float | None], *,
        stream: bool,
    ) -> None:  # fmt: skip
        """Take a request (`body`, without steering) at each strength; the unsteered texts are those at 0."""
        self.prompts: list[str] = body["prompt"]
        self.strengths = strengths
        self.direction = along and along.facts
        """What identifies the direction: run, concept, strategy and layer, or autoencoder and features."""
        self.notes = along.notes if along else ()
        """Which direction it is, and strengths beyond those at which the texts of its run were fluent."""
        self.facts: dict[str, Any] = {}
        """Model, seed and usage; empty of texts that were streamed."""
        bodies = [body | ({"steering": along.at(size)} if along and size else {}) for size in strengths]
        self._pieces = self._streamed(services, bodies[0]) if stream else self._whole(services, bodies)
        self._texts: dict[tuple[int, float | None], dict[str, Any]] = {}

    def _streamed(self, services: Services, body: dict[str, Any]) -> Iterator[Piece]:
        for event in services.stream("steerer", _VERB, body | {"stream": True}):
            yield from (Piece.of(choice, self.strengths[0]) for choice in event["choices"])

    def _whole(self, services: Services, bodies: Sequence[dict[str, Any]]) -> Iterator[Piece]:
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = pool.map(lambda body: services.post("steerer", _VERB, body), bodies)
            for strength, answer in zip(self.strengths, answers, strict=True):
                self.facts |= {name: answer[name] for name in ("model", "seed", "usage") if name in answer}
                yield from (Piece.of(choice, strength) for choice in answer["choices"])

    def __iter__(self) -> Iterator[Piece]:
        for piece in self._pieces:
            row = self._texts.setdefault((piece.prompt, piece.strength), {"text": ""})
            row["text"] += piece.text
            row |= {"finish_reason": piece.finish_reason, "receipt": piece.receipt}
            if piece.reading is not None:
                scores = row.get("reading", {}).get("scores", [])
                row["reading"] = {**piece.reading, "scores": scores + piece.reading["scores"]}
            yield piece

    async def __aiter__(self) -> AsyncIterator[Piece]:
        pieces = iter(self)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return one dictionary per text: strength if there is one, prompt, text, finish_reason, receipt, reading."""
        for _ in self:
            pass
        return [
            ({} if strength is None else {"strength": strength}) | {"prompt": prompt} | self._texts[place, strength]
            for place, prompt in enumerate(self.prompts)
            for strength in self.strengths
        ]

    @property
    def texts(self) -> list[str]:
        """Return the texts alone."""
        return [row["text"] for row in self.to_pylist()]

    @property
    def rows(self) -> Rows:
        """Return the texts with their receipts as a table."""
        import pyarrow as pa

        return Rows(pa.Table.from_pylist(self.to_pylist()))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, as `steer --json` prints it."""
        texts = self.to_pylist()
        return {**self.facts, **({} if self.direction is None else {"direction": self.direction}), "texts": texts}

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.contract.page import Items, SideBySide
        from poolbench_driver.pages.plain import passage

        sides = [
            (
                _caption(row),
                passage(row["prompt"] + row["text"], [(len(row["prompt"]), len(row["prompt"] + row["text"]))]),
            )
            for row in self.to_pylist()
        ]
        num = len(self.strengths)
        blocks = [SideBySide(sides[start : start + num]) for start in range(0, len(sides), num)]
        return None, [part_of(Items(self.notes), *blocks)]


def _caption(row: dict[str, Any]) -> str:
    """Return the strength of a text, how many positions were changed, and the mean score of what is read along."""
    strength, receipt = row.get("strength"), row["receipt"]
    facts = [f"strength {strength:g}" if strength else "unsteered" if strength == 0 or receipt is None else "steered"]
    if receipt is not None:
        facts.append(f"{receipt['positions_changed']} of {receipt['positions_expected']} positions changed")
    if row.get("reading", {}).get("scores"):
        facts.append(f"mean score {fmean(row['reading']['scores']):.2f}")
    return ", ".join(facts)


def strengths_of(strength: float | Sequence[float] | None) -> list[float]:
    """Return strengths without 0: the unsteered text is shown beside several anyway. Raise InputError for none."""
    if strength is None:
        raise InputError("a direction needs a strength, in residual norms of the layer: .2, or several such as .1, .2")
    strengths = [float(size) for size in (strength if isinstance(strength, Iterable) else [strength]) if size]
    if not strengths or not all(map(isfinite, strengths)):
        raise InputError(f"strength {strength!r}: give a number other than 0, or several")
    return strengths


def field_of(unit: str) -> str:
    """Return the field of an edit that has a strength in this unit. Raise InputError for another unit."""
    if unit not in UNITS:
        raise InputError(unknown_name_message("unit", unit, UNITS))
    return UNITS[unit]


def vectors_of(vector: AnyVector, layer: int | None, model: str) -> dict[int, list[float]]:
    """Return a vector by layer as JSON has it.

    Args:
        vector: A file or a vector that says it is for another model is refused.
        layer: The layer of a vector that names none; of another, the one to take.

    Raises:
        InputError: A file cannot be read, no layer is named, or the vector is for another model.
        RestrictedError: The vector is of a sensitive concept.
    """
    import numpy as np

    from poolbench_driver.vectors.card import Vector
    from poolbench_driver.vectors.exporting import refuse_restricted_vector
    from poolbench_driver.vectors.importing import read_for_model, reference_of, require_model_of

    if isinstance(vector, Path | str):
        vectors = read_for_model(Path(vector), model, layer)
    elif isinstance(vector, Vector):
        refuse_restricted_vector(vector)
        require_model_of(vector.card, reference_of(model), "name the model of the vector")
        vectors = dict(vector.at(layer).vectors)
    else:
        layer = vector.layer if layer is None and isinstance(vector, Direction) else layer
        numbers = np.asarray(vector, np.float64)
        if layer is None or numbers.ndim != 1 or not np.isfinite(numbers).all():
            raise InputError(f"a vector is finite numbers [width] at a layer, got shape {numbers.shape}, layer {layer}")
        vectors = {layer: numbers}
    return {number: numbers.tolist() for number, numbers in vectors.items()}


def edits_along(vector: AnyVector, layer: int | None, strength: float, unit: str, model: str) -> list[dict[str, Any]]:
    """Return an edit for each layer of a vector, or for one layer. Raise as `vectors_of`."""
    return [
        {"vector": numbers, "layer": number, field_of(unit): strength, "operation": "add"}
        for number, numbers in vectors_of(vector, layer, model).items()
    ]


def along_vector(vector: AnyVector, layer: int | None, unit: str | None, positions: str | int, model: str) -> Steering:
    """Return how to steer along a vector; without a unit in that of its card, or else in residual norms."""
    card = getattr(vector, "card", None)
    unit = unit or (card.apply.alpha_unit if card else "residual_norm")
    edits, size = edits_along(vector, layer, 1.0, unit, model), field_of(unit)
    facts = {"layers": [edit["layer"] for edit in edits]} | ({"vector": card.name} if card else {})
    return Steering(lambda by: {"edits": [edit | {size: by} for edit in edits], "positions": positions}, facts)


def along_concept(
    services: Services, model: str, names: dict[str, Any], positions: str | int, strengths: Sequence[float]
) -> Steering:
    """Return how to steer by the direction of a run that `names` mean: concept, strategy, layer and run."""
    from poolbench.config import MODEL_PRESETS, ModelRef, resolve_model
    from poolbench.storage.directions import NamedDirections
    from poolbench_driver.cluster.session import open_artifacts

    # The services of a remote cluster read a model as it is named.
    remote = MODEL_PRESETS.get(model) or ModelRef(model, model)
    ref = resolve_model(model) if services.settings.store_uri else remote
    direction = NamedDirections(open_artifacts(services.settings)).find(ref, **names)
    fields = {name: getattr(direction, name) for name in names} | {"positions": positions}
    notes, limit = [f"model {direction.model}, direction: {direction}"], direction.fluent_strength
    if limit is not None and (beyond := [f"{strength:g}" for strength in strengths if abs(strength) > limit]):
        at_most = f"up to {limit:g}" if limit else "at none of its strengths"
        notes.append(f"warning: strength {', '.join(beyond)}: the run's texts were fluent {at_most}")
    return Steering(lambda by: {**fields, "strength": by}, direction.facts(), notes)


def along_features(
    model: str, sae: str, subject: str | None, features: Sequence[int] | None, layer: int | None, run: str | None,
    positions: str | int,
) -> Steering:  # fmt: skip
    """Return how to steer by features of an autoencoder.

    The direction is the sum of their decoder rows, of unit norm: for a subject weighed by the difference of their means
    between its high and low stories (C5, on these stories), else each once.
    """
    import numpy as np

    from poolbench.directions.registry import unit_direction
    from poolbench.directions.sae import SparseAutoencoder
    from poolbench_driver.imports.saes import places_of
    from poolbench_driver.records.features import weights_of_subject

    if (subject is None) == (features is None):
        raise InputError("an autoencoder (sae) takes a subject or numbers of features, one of them")
    if features is not None and run is not None:
        raise InputError("a run belongs to a concept or a subject; features read none")
    places = places_of((sae,), "sae")
    if len(places) > 1:
        raise InputError(f"sae {sae}: several autoencoders; name one of {', '.join(places)}")
    ((name, path),) = places.items()
    autoencoder, _ = SparseAutoencoder.from_folder(path)
    at = autoencoder.layer if layer is None else layer
    if at is None:
        raise InputError(f"{path}: its configuration names no layer; give one")
    made_by, weights = None, dict.fromkeys(features or (), 1.0)
    if subject is not None:
        made_by, weights = weights_of_subject(Path("runs"), run, name, autoencoder.id, model, subject)
    elif not 0 < len(weights) == len(features or ()) or not weights.keys() <= set(range(autoencoder.num_features)):
        raise InputError(f"features {features}: give numbers from 0 to {autoencoder.num_features - 1}, each once")
    numbers, sizes = np.array(list(weights)), np.array(list(weights.values()))
    direction = unit_direction("C5", autoencoder.direction_of(numbers, sizes))
    of_subject = "" if subject is None else f" that answer to {subject}, of run {made_by}"
    listed = ", ".join(map(str, weights))
    note = f"model {model}, direction: features {listed} of {name} at layer {at}{of_subject}"
    fields = {"vector": direction.vector.tolist(), "layer": at, "positions": positions}
    facts = {"autoencoder": name, "subject": subject, "run": made_by, "layer": at, "features": weights}
    return Steering(lambda by: {**fields, "strength": by}, facts, [note])
