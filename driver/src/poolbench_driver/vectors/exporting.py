"""Write vectors in the formats of other tools, each with the line that shows how to use it.

What a format means by a layer, and where that was read, stands in `poolbench.directions.vector_files.gguf` and at its
function here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.concepts import CONCEPTS, refuse_restricted, refuse_sensitive
from poolbench.directions.vector_files import CARD_FILE, CARD_KEY, encode_gguf
from poolbench.errors import InputError, UnknownConceptError, UnknownNameError
from poolbench_driver.vectors.card import Vector, refuse_other_vector
from poolbench_driver.vectors.snippets import SNIPPETS, snippet

_STRENGTH_LIMIT = 300  # apps/webapp/lib/utils/steer.ts of hijohnnylin/neuronpedia
_DEFAULT_STRENGTH = 10.0  # of its Python client


@dataclass(frozen=True)
class Format:
    """How vectors are written for a tool.

    Attributes:
        files: Returns the content of each file by its name; under "" that of a single one.
        usage: Returns how to use what lies at a path.
    """

    files: Callable[[Vector], Mapping[str, bytes]]
    usage: Callable[[Vector, Path], str]


def export_vector(vector: Vector, name: str, output: Path) -> str:
    """Write a vector in a format and return how to use it.

    Raises:
        UnknownNameError: The format is unknown.
        RestrictedError: The concept is sensitive.
        InputError: The format cannot express the vector, or `output` cannot be written.
    """
    if name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    refuse_restricted_vector(vector)
    files = FORMATS[name].files(vector)
    if CARD_FILE in files:
        refuse_other_vector(output, vector)
    try:
        for file, data in files.items():
            path = output / file if file else output
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise InputError(f"{output} cannot be written: {error.strerror or error}") from None
    return FORMATS[name].usage(vector, output)


def refuse_restricted_vector(vector: Vector) -> None:
    """Raise RestrictedError for the vector of a sensitive concept."""
    concept, artifact = vector.card.concept, vector.card.source.artifact
    refuse_restricted(f"the direction of {concept}", [artifact] if artifact else [])
    try:
        names = [CONCEPTS.get(concept).id] if concept else []
    except UnknownConceptError:  # a concept of another machine; its artifact says if it is restricted
        names = []
    refuse_sensitive(names)


def _gguf(vector: Vector, **metadata: str) -> Mapping[str, bytes]:
    card = vector.card
    entries: dict[str, str | int] = {
        "controlvector.model_hint": card.architecture or card.model,
        **{f"controlvector.{key}": value for key, value in metadata.items()},
        "controlvector.layer_count": len(vector.vectors),
        CARD_KEY: card.model_dump_json(),
    }
    return {"": encode_gguf(vector.vectors, entries)}


def _llama_cpp(vector: Vector) -> Mapping[str, bytes]:
    if 0 in vector.vectors:
        raise InputError("llama.cpp cannot steer at layer 0: its direction.1 is for layer 1; export another layer")
    return _gguf(vector)


def _llama_cpp_usage(vector: Vector, path: Path) -> str:
    layers = f"{min(vector.vectors)} {max(vector.vectors)}"
    scaled = f"{path}:{_alpha(vector)}"
    return f"llama-server -m MODEL.gguf --control-vector-scaled {scaled} --control-vector-layer-range {layers}"


def _easysteer(vector: Vector) -> Mapping[str, bytes]:
    """Return GGUF with the method, which EasySteer reads beside the fields of repeng (easysteer/steer/utils.py)."""
    return _gguf(vector, method=vector.card.construction or "unknown")


def _neuronpedia(vector: Vector) -> Mapping[str, bytes]:
    """Return the body of `POST /api/vector/new`.

    Its hook `hook_resid_post` of layer n is the output of block n, as in TransformerLens
    (apps/webapp/app/api/vector/new/route.tsx, lib/utils/neuron-vector.ts).
    """
    layer = _single_layer(vector, "neuronpedia")
    alpha = _recommended_alpha(vector)
    record = {
        "modelId": vector.card.model.rpartition("/")[2],
        "layerNumber": layer,
        "hookType": "hook_resid_post",
        "vector": [float(number) for number in vector.vectors[layer]],
        "vectorDefaultSteerStrength": _DEFAULT_STRENGTH if alpha is None else min(alpha, _STRENGTH_LIMIT),
        "vectorLabel": vector.card.name,
    }
    return {"": json.dumps(record).encode() + b"\n"}


def _neuronpedia_usage(vector: Vector, path: Path) -> str:
    return (
        f"curl -H 'x-api-key: KEY' --json @{path} https://www.neuronpedia.org/api/vector/new  "
        f"(if modelId {vector.card.model.rpartition('/')[2]} is the id of the model there)"
    )


def _with_snippet(name: str) -> Callable[[Vector], Mapping[str, bytes]]:
    def files(vector: Vector) -> Mapping[str, bytes]:
        layer = _single_layer(vector, name)
        return {**vector.files(), "steer.py": snippet(name, vector, layer, _recommended_alpha(vector)).encode()}

    return files


def _single_layer(vector: Vector, name: str) -> int:
    if len(vector.vectors) > 1:
        layers = ", ".join(map(str, vector.vectors))
        raise InputError(f"{name} takes a vector of one layer; give --layer, one of {layers}")
    return next(iter(vector.vectors))


def _recommended_alpha(vector: Vector) -> float | None:
    strength = vector.card.strength.recommended
    return None if strength is None else vector.card.alpha(strength, next(iter(vector.vectors)))


def _alpha(vector: Vector) -> str:
    alpha = _recommended_alpha(vector)
    return "ALPHA" if alpha is None or len(vector.vectors) > 1 else f"{alpha:.4g}"


def _usage(line: str) -> Callable[[Vector, Path], str]:
    def usage(vector: Vector, path: Path) -> str:
        fields: dict[str, Any] = {"path": path, "layers": list(vector.vectors), "alpha": _alpha(vector)}
        return line.format(**fields)

    return usage


_REPENG = (
    "ControlModel(model, {layers}).set_control(ControlVector.import_gguf('{path}'), {alpha})  # from repeng, in Python"
)
_EASYSTEER = "VectorSpec(source='{path}', scale={alpha}, layers={layers}, apply=ApplySpec(phases=['generation']))"

FORMATS: Mapping[str, Format] = {
    "poolbench": Format(lambda vector: vector.files(), _usage("poolbench-driver vectors show {path}")),
    "gguf": Format(_llama_cpp, _llama_cpp_usage),
    "repeng": Format(_gguf, _usage(_REPENG)),
    "easysteer": Format(_easysteer, _usage(_EASYSTEER)),
    "neuronpedia": Format(_neuronpedia, _neuronpedia_usage),
    **{name: Format(_with_snippet(name), _usage("python {path}/steer.py 'PROMPT'")) for name in SNIPPETS},
}
