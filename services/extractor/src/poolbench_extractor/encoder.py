"""`PoolingEncoder`: a `SentenceTransformer` of any decoder, layer and pooling strategy."""

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Literal, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.decorators import deprecated_kwargs

from poolbench.config import LayerChoice, layer_index, resolve_model
from poolbench.errors import ConfigError, InputError, PoolbenchError
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.settings import ExtractorSettings
from poolbench.steps.pooler import SHIPPED_PIPELINE
from poolbench_extractor.embedding.module import Annotate, PoolingModule
from poolbench_extractor.embedding.texts import unsupervised
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder


class TruncationWarning(UserWarning):
    """Texts were cut to the window of the model."""


class PoolingEncoder(SentenceTransformer):
    """A `SentenceTransformer` whose only module runs a decoder and pools one of its layers.

    Its `encode` cannot return a status, so it differs from `POST /embed` in two points. A text longer than
    `max_seq_length` is cut, with a `TruncationWarning`, and counted in `num_truncated`. A text that cannot be
    computed (no real token, states that are not finite) raises an error, or gives a row of NaN with `on_failure="nan"`.

    Args:
        model: Preset id, folder or Hugging Face id, or a decoder that is loaded already.
        strategy: Id of a pooling strategy that needs no labels.
        layer: Block index. Negative indices count from the end.
        max_seq_length: Most positions of a text, special tokens included. The default, and the maximum, is the model's
            window.
        include_bos: Whether a special token at position 0 counts as a real token.
        sinks: Which tokens are attention sinks, and whether they are left out.
        annotate: Function that annotates texts, for strategies that read annotations. The default is the shipped spaCy
            pipeline.
        idf_texts: Texts from which the default annotator computes document frequencies (`L5_keyword`).
        prompts: Texts put before every sentence, by name.
        default_prompt_name: Name of the prompt for calls without a prompt name.
        similarity_fn_name: `cosine`, `dot`, `euclidean` or `manhattan`.
        on_failure: `raise` or `nan`.

    Raises:
        PoolbenchError: A name does not exist, the strategy cannot be computed from texts alone, or it needs an
            annotator and none is installed.
    """

    def __init__(
        self,
        model: str | Decoder,
        strategy: str = "A1_mean",
        layer: LayerChoice = -1,
        *,
        params: Mapping[str, Any] | None = None,
        revision: str | None = None,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        include_bos: bool = False,
        sinks: SinkRule = LEAVE_OUT,
        annotate: Annotate | None = None,
        idf_texts: Sequence[str] | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: Any = "cosine",
        on_failure: Literal["raise", "nan"] = "raise",
    ) -> None:
        pooling = unsupervised(strategy, params)
        _require_prompt(default_prompt_name, prompts or {})
        if idf_texts is not None and (annotate is not None or not pooling.strategy.reads_annotations):
            raise ConfigError(f"idf_texts: strategy {pooling.id} does not read them here; leave them out")
        if pooling.strategy.reads_annotations and annotate is None:
            annotate = _installed_annotator(pooling.id, idf_texts)
        reference = None if isinstance(model, Decoder) else resolve_model(model, revision=revision, dtype=dtype)
        if not isinstance(model, Decoder):
            assert reference is not None
            model = load_decoder(reference, ExtractorSettings.load())
        module = PoolingModule(
            model,
            pooling,
            layer_index(layer, model.num_blocks),
            include_bos=include_bos,
            sinks=sinks,
            annotate=annotate,
            on_failure=on_failure,
            max_length=max_seq_length,
            reference=reference,
        )
        super().__init__(
            modules=[module],
            device=str(model.device),
            prompts=dict(prompts or {}),
            default_prompt_name=default_prompt_name,
            similarity_fn_name=similarity_fn_name,
        )

    @property
    def num_truncated(self) -> int:
        """Return the number of texts that were cut so far."""
        return self._module.num_truncated

    @property
    def _module(self) -> PoolingModule:
        return cast(PoolingModule, self[0])

    @property
    def similarity_fn_name(self) -> Any:
        """Return the similarity that `similarity` and `similarity_pairwise` compute."""
        return super().similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: Any) -> None:
        if getattr(name, "value", name) not in self.SUPPORTED_SIMILARITY_FN_NAMES:
            allowed = ", ".join(self.SUPPORTED_SIMILARITY_FN_NAMES)
            raise ConfigError(f"similarity {name!r} is unknown; allowed: {allowed}")
        SentenceTransformer.similarity_fn_name.fset(self, name)  # type: ignore[attr-defined]

    @deprecated_kwargs(sentences="inputs")
    def encode(self, inputs: Any, prompt_name: str | None = None, *args: Any, **options: Any) -> Any:
        """Return one vector per text, in their order, as `SentenceTransformer.encode` does.

        Args:
            inputs: A text, or any iterable of texts: a list, a generator, or a column of pandas, NumPy, Arrow or
                `datasets`.

        Raises:
            ConfigError: The prompt name is unknown, or `output_value` is `token_embeddings`.
            InputError: An input is not valid text, or its vector cannot be computed and `on_failure` is `raise`.
        """
        is_one = isinstance(inputs, str) or hasattr(inputs, "as_py")
        texts = _texts_of([inputs] if is_one else inputs)
        _require_prompt(prompt_name, self.prompts)
        if options.get("output_value") == "token_embeddings":
            raise ConfigError("output_value 'token_embeddings': the encoder pools tokens; use 'sentence_embedding'")
        cut_before = self.num_truncated
        try:
            vectors = super().encode(texts[0] if is_one else texts, prompt_name, *args, **options)
        except PoolbenchError as error:
            raise error.with_traceback(None) from None  # the frames between are the library's, and say nothing
        num_cut = self.num_truncated - cut_before
        if num_cut:
            message = f"{num_cut} of {len(texts)} texts were cut to {self.max_seq_length} tokens"
            warnings.warn(message, TruncationWarning, stacklevel=3)
        if texts or isinstance(vectors, list):
            return vectors
        # An empty answer of the library has no width.
        empty = torch.zeros((0, self._module.get_embedding_dimension()), device=self.device)
        return empty if isinstance(vectors, torch.Tensor) else empty.cpu().numpy()


def _installed_annotator(strategy: str, idf_texts: Sequence[str] | None) -> Annotate:
    """Return the annotator that the package of the pooler registers, because services do not import one another.

    Raise ConfigError if no annotator is installed.
    """
    try:
        (point,) = entry_points(group="poolbench.annotators", name=SHIPPED_PIPELINE)
        annotate: Annotate = point.load()(idf_texts)
    except (ValueError, ImportError) as error:
        why = f" ({error})" if isinstance(error, ImportError) else ""
        raise ConfigError(
            f"strategy {strategy} reads annotations, and no annotator is installed{why}: install services/pooler and "
            "spaCy (`make install` does), or give `annotate`, from texts to rows of `POST /pooler/annotate`"
        ) from None
    return annotate


def _require_prompt(name: str | None, prompts: Mapping[str, Any]) -> None:
    if name is not None and name not in prompts:
        raise ConfigError(f"prompt {name!r} is unknown; known: {', '.join(prompts) or 'none'}")


def _texts_of(inputs: Any) -> list[str]:
    """Return texts as a list. Raise InputError for anything else.

    Tables are refused too, because iterating over a table gives the names of its columns.
    """
    kind = type(inputs).__name__
    if isinstance(inputs, Mapping) or hasattr(inputs, "columns") or hasattr(inputs, "column_names"):
        raise InputError(f"the input is a {kind}; give one column of it, such as table['text']")
    try:
        members = list(inputs)
    except TypeError:
        raise InputError(f"the input is a {kind}; give a text, or a list of texts") from None
    return [_text_of(index, text) for index, text in enumerate(members)]


def _text_of(index: int, value: Any) -> str:
    text = value.as_py() if hasattr(value, "as_py") else value  # a scalar of Arrow
    if not isinstance(text, str):
        raise InputError(f"sentence {index} is a {type(text).__name__}; it must be a text; leave missing ones out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"sentence {index} is not valid Unicode: {error.reason} at character {error.start}") from None
    return str(text)
