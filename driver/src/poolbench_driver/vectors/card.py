"""The card of a steering vector, and the folder that holds both: `vector.safetensors` and `card.json`."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, model_validator

from poolbench import __version__
from poolbench.config.base import StrictModel
from poolbench.contracts import Row
from poolbench.directions.vector_files import CARD_FILE, VECTOR_FILE, VectorFile, read_vector_file
from poolbench.errors import InputError, shown

#: How far the norm of a vector may be from 1 to be taken as it is; others are divided by it.
_UNIT_TOLERANCE = 1e-6

Finite = Annotated[float, Field(allow_inf_nan=False)]
Layer = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=2_000)]


class CardModel(StrictModel):
    """A part of a card: no other keys, and no values of other types."""

    model_config = ConfigDict(strict=True)


class Application(CardModel):
    """The way in which a vector is applied."""

    formula: Text = "h[n] + alpha * direction.n, where h[n] is the output of block n, counted from 0"
    alpha_unit: Literal["residual_norm", "absolute"] = "residual_norm"
    """Unit of strengths. In `residual_norm`, alpha is the strength times the residual norm of the layer."""
    residual_norms: dict[Layer, Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None
    """Median norm of the residual stream by layer, on the calibration texts; null where it is unknown."""
    positions: Literal["generated", "all", "prompt"] = "generated"
    """Positions at which the recommended strength was measured."""


class Strength(CardModel):
    """The strengths that are recommended, in the unit of the application."""

    recommended: Finite | None = None
    safe_low: Finite | None = None
    safe_high: Finite | None = None
    """The range in which the text stayed fluent and, where it was measured, `damage.perplexity_ratio` at most 1.5."""
    reason: Text | None = None
    """Why a value is null, or that the recommended strength is above the safe range."""

    @model_validator(mode="after")
    def _says_what_is_unsafe(self) -> Self:
        """Gain and safety are measured on different texts, so the best gain may lie above the safe range."""
        if self.reason is None and self.recommended is not None and self.warning([self.recommended]):
            above = f"the recommended strength {self.recommended:g} is above the safe range"
            object.__setattr__(self, "reason", f"{above}, which ends at {self.safe_high:.3g}")
        return self

    def warning(self, strengths: Sequence[float]) -> str | None:
        """Return which strengths are above the safe range, as a line for users; None if none is."""
        above = [f"{one:g}" for one in strengths if self.safe_high is not None and abs(one) > self.safe_high]
        return f"warning: strength {', '.join(above)}: safe up to {self.safe_high:.3g}" if above else None


class LimitTest(CardModel):
    """Harm at one strength, with upper confidence bounds."""

    strength: Finite
    wrong_way: Finite
    wrong_way_bound: Finite
    perplexity_ratio: Finite | None = None
    """Null, as its bound, if fewer than two openings have texts with tokens."""
    perplexity_bound: Finite | None = None


class Limit(CardModel):
    """The strength up to which harm stays below named levels, at the positions of the application."""

    strength: Finite | None = None
    """The limit, in the unit of the application; null where no strength was shown to stay below the levels."""
    wrong_way: Finite
    """Level of the share of openings that move the wrong way: their score falls by more than `fall`."""
    fall: Finite
    perplexity_ratio: Finite
    """Level of the perplexity of steered over unsteered texts, as the geometric mean over openings."""
    alpha: Finite
    """Largest probability that a level is reached at a tested strength up to the limit."""
    openings: Annotated[int, Field(ge=0)]
    """Openings that the limit was read on; they chose neither the vector nor its strength."""
    tests: tuple[LimitTest, ...] = ()
    """Harm at each strength in ascending order, up to the first that fails."""
    reason: Text
    """Why the limit is not higher."""
    method: Text = "fixed sequence of strengths; exact binomial bound of the share, paired t bound of log-perplexity"

    def outside(self, strengths: Sequence[float]) -> str | None:
        """Return which strengths the limit does not cover, and why, as a line for users; None if it covers all."""
        outside = [f"{one:g}" for one in strengths if not 0 <= one <= (self.strength or 0)]
        if not outside:
            return None
        covered = "which covers no strength" if self.strength is None else f"0 to {self.strength:g}"
        return f"strength {', '.join(outside)} is outside the limit of the card, {covered}: {self.reason}"


class Source(CardModel):
    """Where the vector comes from."""

    tool: Text
    """What made the vector or its file, such as `PoolBench 0.1.0` or `gguf`."""
    run: Text | None = None
    cell: Text | None = None
    """Id of the row of the run's results whose figure recommends the vector."""
    artifact: Text | None = None
    """Key of the directions in the object store."""
    file: Text | None = None
    """Name of the file that was imported."""
    file_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    norms: dict[Layer, Finite] | None = None
    """Norm of each vector in that file."""


class CardMeasure(CardModel):
    """A figure of the vector, or a null with its reason."""

    name: Text
    strength: Finite | None = None
    """The strength that it is read at, in the unit of the application; null where it has none of its own."""
    value: Finite | None = None
    ci_low: Finite | None = None
    ci_high: Finite | None = None
    n: Annotated[int, Field(ge=0)] | None = None
    status: Text = "ok"
    reason: Text | None = None

    @classmethod
    def of_row(cls, name: str, row: Row, strength: float | None = None) -> Self:
        """Return the figure of a result row. The end of a long reason is cut."""
        columns = {column: row[column] for column in ("value", "ci_low", "ci_high", "n")}
        reason = row["reason"] and row["reason"][:1000]
        return cls(name=name, strength=strength, status=str(row["status"]), reason=reason, **columns)


class LensToken(CardModel):
    """A token, and the change of its logit beyond the mean change over the vocabulary."""

    token: Text
    value: Finite


class Lens(CardModel):
    """The tokens whose logits the vector raises and lowers most, the strongest first."""

    strength: Finite | None = None
    """Null: the unit vector through the weight of the last norm and the head. Else the mean change on benign text."""
    promoted: tuple[LensToken, ...] = ()
    suppressed: tuple[LensToken, ...] = ()
    reason: Text | None = None
    """Why there are none."""


class VectorCard(CardModel):
    """The facts that a reader needs to apply and to judge a steering vector."""

    version: Literal[1] = 1
    name: Text
    """Model and concept, such as `demo+contrast`."""
    concept: Text | None = None
    model: Text
    model_revision: Text | None = None
    """Hash or hub revision of the weights that the vector was made with; null if unknown."""
    architecture: Text | None = None
    """Type of the model as Transformers names it, such as `llama`."""
    width: Annotated[int, Field(gt=0)]
    num_blocks: Annotated[int, Field(gt=0)]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    """Blocks, counted from 0, to whose output a vector is added."""
    strategy: Text | None = None
    strategy_params: dict[str, Any] = Field(default_factory=dict)
    construction: Text | None = None
    apply: Application = Application()
    strength: Strength
    limit: Limit | None = None
    """Null where no search has measured it."""
    source: Source
    licence: Text = "unknown"
    vectors_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the vectors: float32, little-endian, by rising layer."""
    measures: tuple[CardMeasure, ...] = ()
    judge: Text | None = None
    """Who rated its texts for the measures `judge.*`; null where there was no judge."""
    lenses: tuple[Lens, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """Return the card of a JSON text. Raise InputError, which names the first wrong field."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            of_field = f" at {field}" if field else ""
            raise InputError(f"the card of the vector cannot be read{of_field}: {first['msg']}") from None

    def warnings(self, strengths: Sequence[float]) -> list[str]:
        """Return lines for users about strengths above the safe range, and outside the limit."""
        outside = None if self.limit is None else self.limit.outside(strengths)
        lines = self.strength.warning(strengths), f"warning: {outside}" if outside else None
        return [line for line in lines if line]

    def alpha(self, strength: float, layer: int) -> float | None:
        """Return the factor of the vector at a strength; None where the residual norm is unknown."""
        if self.apply.alpha_unit == "absolute":
            return strength
        norm = (self.apply.residual_norms or {}).get(layer)
        return None if norm is None else strength * norm


@dataclass(frozen=True)
class Vector:
    """Vectors by layer, and their card. Vectors of a run have unit norm. Imported vectors keep their norm."""

    card: VectorCard
    vectors: Mapping[int, np.ndarray]  # float32 [width]

    def at(self, layer: int | None) -> Self:
        """Return the vector of a layer, or all vectors without a layer. Raise InputError if there is none at this
        layer.
        """
        if layer is None or layer in self.vectors:
            layers = (layer,) if layer is not None else tuple(self.vectors)
            vectors = {number: self.vectors[number] for number in layers}
            fields = {"layers": layers, "vectors_sha256": sha256_of_vectors(vectors)}
            return replace(self, card=self.card.model_copy(update=fields), vectors=vectors)
        at_hand = ", ".join(map(str, self.card.layers))
        raise InputError(f"{self.card.name} has no vector of layer {layer}; it has {at_hand}")

    def files(self) -> dict[str, bytes]:
        """Return the files of the folder by name. Equal vectors give equal bytes."""
        from safetensors.numpy import save

        tensors = {f"direction.{layer}": np.ascontiguousarray(vector) for layer, vector in self.vectors.items()}
        return {VECTOR_FILE: save(tensors), CARD_FILE: self.card.model_dump_json(indent=1).encode() + b"\n"}

    def save(self, folder: Path) -> None:
        """Write the vector's folder. Raise InputError if the folder cannot be written, or holds another vector."""
        refuse_other_vector(folder, self)
        write_files(folder, self.files())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the vector of a folder, or of a file that carries its card.

        Raises:
            InputError: The card is missing, or belongs to other vectors.
        """
        file = read_vector_file(path)
        vector = cls.of_file(file)
        if vector is None:
            remedy = "`poolbench-driver vectors import` makes one"
            raise InputError(f"{path} has no card that says which model and layer it is for; {remedy}")
        return vector

    @classmethod
    def of_file(cls, file: VectorFile) -> Self | None:
        """Return the vector of a file that contains its card, or None without a card.

        Raises:
            InputError: The card cannot be read, or belongs to other vectors.
        """
        if file.card is None:
            return None
        card = VectorCard.parse(file.card)
        vectors = {layer: vector for layer, vector in file.vectors.items() if layer is not None}
        if sha256_of_vectors(vectors) != card.vectors_sha256:
            raise InputError(f"the card of {shown(card.name)} is that of other numbers (vectors_sha256)")
        return cls(card, vectors)


def write_files(place: Path, files: Mapping[str, bytes]) -> None:
    """Write files by name into a folder. A file named "" is written to `place` itself. Raise InputError on failure."""
    try:
        for name, data in files.items():
            path = place / name if name else place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise InputError(f"{place} cannot be written: {error.strerror or error}") from None


def refuse_other_vector(folder: Path, vector: Vector) -> None:
    """Raise InputError if `folder` is a file, or holds other numbers or a vector of another model."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder")
    if not (folder / CARD_FILE).exists():
        return
    try:
        card = VectorCard.parse((folder / CARD_FILE).read_bytes())
    except (InputError, OSError):
        raise InputError(f"{folder} holds a {CARD_FILE} that does not describe a vector; name another folder") from None
    if (card.vectors_sha256, card.model) != (vector.card.vectors_sha256, vector.card.model):
        raise InputError(f"{folder} holds another vector, {shown(card.name)}; name another folder, or remove it")


def sha256_of_vectors(vectors: Mapping[int, np.ndarray]) -> str:
    """Return the SHA-256 of vectors by layer, as recorded in a card."""
    numbers = b"".join(vectors[layer].astype("<f4").tobytes() for layer in sorted(vectors))
    return hashlib.sha256(numbers).hexdigest()


def unit_vector(vector: np.ndarray) -> np.ndarray:
    """Return a vector divided by its norm, float32. A unit vector is returned unchanged."""
    norm = np.linalg.norm(vector.astype(np.float64))
    return vector if abs(norm - 1) < _UNIT_TOLERANCE else (vector / norm).astype(np.float32)


def made_here() -> str:
    """Return the name of this program and its version, as the source of a card."""
    return f"PoolBench {__version__}"


def vector_name(model: str, concept: str) -> str:
    """Return the name of a vector: the last part of the model's name, and the concept."""
    return f"{model.rstrip('/').rpartition('/')[2]}+{concept}"
