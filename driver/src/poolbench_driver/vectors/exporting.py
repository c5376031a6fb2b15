"""Write vectors in the formats of other tools, each with the line that shows how to use it.

What a format means by a layer, and where that was read, stands in `poolbench.directions.vector_files.gguf` and at its
function here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from poolbench.concepts import CONCEPTS, refuse_restricted, refuse_sensitive
from poolbench.directions.vector_files import CARD_FILE, CARD_KEY, encode_gguf
from poolbench.errors import InputError, UnknownConceptError, UnknownNameError
from poolbench_driver.vectors.card import Vector, refuse_other_vector, write_files
from poolbench_driver.vectors.snippets import SNIPPETS, snippet

_STRENGTH_LIMIT = 300  # apps/webapp/lib/utils/steer.ts of hijohnnylin/neuronpedia
_DEFAULT_STRENGTH = 10.0  # of its Python client


@dataclass(frozen=True)
class Format:
    """The format in which vectors are written for a tool.

    Attributes:
        files: Returns the content of each file by name. A single file has the name "".
        usage: How to use the files at `path`. `export_vector` fills in the fields.
    """

    files: Callable[[Vector], Mapping[str, bytes]]
    usage: str


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
    write_files(output, files)
    layers, model = list(vector.vectors), _model_name(vector)
    fields = {"path": output, "layers": layers, "first": min(layers), "last": max(layers), "model": model}
    return FORMATS[name].usage.format(**fields, alpha=_alpha(vector))


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
    if alpha is None:  # the numbers of a file have a size of their own
        alpha = 1.0 if vector.card.apply.alpha_unit == "absolute" else _DEFAULT_STRENGTH
    record = {
        "modelId": _model_name(vector),
        "layerNumber": layer,
        "hookType": "hook_resid_post",
        "vector": [float(number) for number in vector.vectors[layer]],
        "vectorDefaultSteerStrength": min(alpha, _STRENGTH_LIMIT),
        "vectorLabel": vector.card.name,
    }
    return {"": json.dumps(record).encode() + b"\n"}


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
    is_of_all = len(vector.vectors) == 1 or vector.card.apply.alpha_unit == "absolute"
    return f"{alpha:.4g}" if alpha is not None and is_of_all else "ALPHA"


def _model_name(vector: Vector) -> str:
    return vector.card.model.rpartition("/")[2]


_LLAMA_CPP = (
    "llama-server -m MODEL.gguf --control-vector-scaled {path}:{alpha} --control-vector-layer-range {first} {last}"
)
_REPENG = (
    "ControlModel(model, {layers}).set_control(ControlVector.import_gguf('{path}'), {alpha})  # from repeng, in Python"
)
_EASYSTEER = "VectorSpec(source='{path}', scale={alpha}, layers={layers}, apply=ApplySpec(phases=['generation']))"
_NEURONPEDIA = (
    "curl -H 'x-api-key: KEY' --json @{path} https://www.neuronpedia.org/api/vector/new  "
    "(if modelId {model} is the id of the model there)"
)

FORMATS: Mapping[str, Format] = {
    "poolbench": Format(lambda vector: vector.files(), "poolbench-driver vectors show {path}"),
    "gguf": Format(_llama_cpp, _LLAMA_CPP),
    "repeng": Format(_gguf, _REPENG),
    "easysteer": Format(_easysteer, _EASYSTEER),
    "neuronpedia": Format(_neuronpedia, _NEURONPEDIA),
    **{name: Format(_with_snippet(name), "python {path}/steer.py 'PROMPT'") for name in SNIPPETS},
}
