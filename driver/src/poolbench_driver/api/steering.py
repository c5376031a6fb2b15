"""Prompts continued under steering: the requests to the steerer, and the texts that it generates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from poolbench.errors import InputError
from poolbench_driver.api.answers import Direction
from poolbench_driver.api.notebook import Rows, Shown, part_of
from poolbench_driver.queries.plain_values import listed
from poolbench_driver.vectors.units import field_of

if TYPE_CHECKING:
    import numpy as np

    from poolbench_driver.cluster.services import Services
    from poolbench_driver.contract.page import Answer, Part
    from poolbench_driver.vectors.card import Vector

    #: A file that `vectors import` reads, a vector of a run, a direction, or numbers [width].
    AnyVector = Path | str | Vector | Direction | np.ndarray | Sequence[float]

LOADING = "waiting for the steerer; a model that is not loaded yet takes a while"
_VERB = "v1/completions"


@dataclass(frozen=True)
class Piece:
    """A piece of a text that is being generated. The last piece of a text has a finish reason and a receipt."""

    prompt: int  # place of the prompt, from 0
    text: str  # the new characters
    strength: float | None = None  # None without a direction
    finish_reason: str | None = None  # stop or length; None before the end of the text
    receipt: dict[str, Any] | None = None  # the edits and the number of positions that were changed
    reading: dict[str, Any] | None = None  # scores of these tokens along the direction of `read`

    @classmethod
    def of(cls, choice: dict[str, Any], strength: float | None = None) -> Piece:
        """Convert an answer of the steerer.

        Args:
            choice: An entry of `choices` of a completion, or of a chunk of a streamed completion.
            strength: Strength at which the text is steered.
        """
        last = choice["finish_reason"], choice.get("steering_receipt")
        return cls(choice["index"], choice["text"], strength, *last, choice.get("reading"))


@dataclass(frozen=True)
class Steering:
    """A direction to steer along, as the request field `steering`, with facts and notes for readers."""

    at: Callable[[float], dict[str, Any]]  # from a strength to the field `steering` of a request
    facts: dict[str, Any]  # identifies the direction, for readers
    notes: Sequence[str] = ()  # names the direction, and warns of strengths at which texts are not fluent


class SteeredTexts(Shown):
    """Texts that continue prompts, each with its receipt.

    Iterating yields pieces while the texts are generated. Properties and methods that need complete texts wait for
    them.

    Attributes:
        prompts: The prompts.
        strengths: The strengths of the texts of each prompt; None stands for texts without a direction.
        direction: Identifies the direction: run, concept, strategy and layer, or autoencoder and features. None for
            unsteered texts.
        notes: Sentences that name the direction, and warn of strengths at which the texts of its run were not fluent.
        facts: Model, seed and token counts; empty for streamed texts.
    """

    def __init__(
        self, services: Services, body: dict[str, Any], along: Steering | None, strengths: Sequence[float | None], *,
        stream: bool,
    ) -> None:  # fmt: skip
        """Send a request (`body`, without its field `steering`) at each strength. Strength 0 is unsteered."""
        self.prompts: list[str] = body["prompt"]
        self.strengths = strengths
        self.direction = along and along.facts
        self.notes = along.notes if along else ()
        self.facts: dict[str, Any] = {}
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

    def __getstate__(self) -> dict[str, Any]:
        self.to_pylist()  # a copy has the whole texts, and no connection
        return {**vars(self), "_pieces": iter(())}

    async def __aiter__(self) -> AsyncIterator[Piece]:
        pieces = iter(self)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    def to_pylist(self) -> list[dict[str, Any]]:
        """Wait for all texts.

        Returns:
            One dictionary per text: `strength` (if steered along a direction), `prompt`, `text`, `finish_reason`,
            `receipt`, and `reading` (if a direction was read).
        """
        for _ in self:
            pass
        return [
            ({} if strength is None else {"strength": strength}) | {"prompt": prompt} | self._texts[place, strength]
            for place, prompt in enumerate(self.prompts)
            for strength in self.strengths
        ]

    @property
    def texts(self) -> list[str]:
        """Return the generated texts without their prompts, in the order of `to_pylist`."""
        return [row["text"] for row in self.to_pylist()]

    @property
    def rows(self) -> Rows:
        """Return a table with one row per text, as in `to_pylist`."""
        import pyarrow as pa

        return Rows(pa.Table.from_pylist(self.to_pylist()))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts, the direction and the texts, as `poolbench-driver steer --json` prints them."""
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
    """Describe a text: its strength, the number of changed positions, and the mean score along the direction read."""
    strength, receipt = row.get("strength"), row["receipt"]
    facts = [f"strength {strength:g}" if strength else "unsteered" if strength == 0 or receipt is None else "steered"]
    if receipt is not None:
        facts.append(f"{receipt['positions_changed']} of {receipt['positions_expected']} positions changed")
    if row.get("reading", {}).get("scores"):
        facts.append(f"mean score {fmean(row['reading']['scores']):.2f}")
    return ", ".join(facts)


def strengths_of(strength: float | Sequence[float] | None) -> list[float]:
    """Return the strengths other than 0, whose text is always generated. Raise InputError if none remains."""
    if strength is None:
        raise InputError("a direction needs a strength, in residual norms of the layer: .2, or several such as .1, .2")
    sizes = [strength] if isinstance(strength, int | float) else listed(strength, "strength")
    if not all(isinstance(size, int | float) and isfinite(size) for size in sizes) or not any(sizes):
        raise InputError(f"strength {strength!r}: give a number other than 0, or several")
    strengths = [float(size) for size in sizes if size]
    if len(set(strengths)) < len(strengths):
        raise InputError(f"strength {strength!r}: one of them stands twice")
    return strengths


def vectors_of(vector: AnyVector, layer: int | None, model: str) -> dict[int, list[float]]:
    """Return the numbers of a vector by layer.

    Args:
        vector: A vector file, a vector of a run, a direction, or numbers [width].
        layer: Layer of a vector that names no layer; for a vector with several layers, the layer to use.
        model: Model that is steered.

    Raises:
        InputError: The file cannot be read, the layer is missing, or the vector belongs to another model.
        RestrictedError: The vector belongs to a sensitive concept.
    """
    from poolbench_driver.queries.arrays import checked_array
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
        numbers = checked_array(vector, "the vector", 1).astype("float64")
        if layer is None or not all(map(isfinite, numbers)):
            raise InputError(f"a vector is finite numbers [width] at a layer, got shape {numbers.shape}, layer {layer}")
        vectors = {layer: numbers}
    return {number: numbers.tolist() for number, numbers in vectors.items()}


def opened(vector: AnyVector | None) -> AnyVector | None:
    """Read a vector file that contains a card. Return all other vectors unchanged."""
    from poolbench_driver.vectors.importing import read_with_card

    return (read_with_card(Path(vector)) or vector) if isinstance(vector, Path | str) else vector


def along_vector(
    vector: AnyVector, layer: int | None, unit: str, positions: str | int, model: str, strengths: Sequence[float] = ()
) -> Steering:
    """Return the steering along a vector, or along one of its layers. Raise the errors of `vectors_of`."""
    size, card = field_of(unit), getattr(vector, "card", None)
    edits = [
        {"vector": numbers, "layer": number, "operation": "add"}
        for number, numbers in vectors_of(vector, layer, model).items()
    ]
    facts = {"layers": [edit["layer"] for edit in edits]} | ({"vector": card.name} if card else {})
    notes = card.warnings(strengths) if card and card.apply.alpha_unit == unit else []
    return Steering(lambda by: {"edits": [edit | {size: by} for edit in edits], "positions": positions}, facts, notes)


def along_concept(
    services: Services, model: str, names: dict[str, Any], positions: str | int, strengths: Sequence[float]
) -> Steering:
    """Return the steering along a direction of a run. `names` has the keys concept, strategy, layer and run."""
    from poolbench.config import MODEL_PRESETS, ModelRef, resolve_model
    from poolbench.library.directions import NamedDirections
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
    output: Path, positions: str | int,
) -> Steering:  # fmt: skip
    """Return the steering along features of an autoencoder.

    The direction is the sum of the decoder rows of the features, scaled to unit norm. With a `subject`, each row is
    weighted by the difference of the feature's means between the high and the low stories of the subject (C5).
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
        made_by, weights = weights_of_subject(output, run, name, autoencoder.id, model, subject)
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
