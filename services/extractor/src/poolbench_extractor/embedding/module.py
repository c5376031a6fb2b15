"""A decoder, a layer and a pooling strategy as a module of sentence-transformers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from sentence_transformers.base.modules import Module
from torch import Tensor

from poolbench.config import ModelRef, resolve_model
from poolbench.contracts.tables import vector_matrix
from poolbench.errors import ConfigError, InputError, shown
from poolbench.pooling.batch import Request
from poolbench.pooling.sinks import LEAVE_OUT, SinkRule
from poolbench.settings import ExtractorSettings
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.core import extract
from poolbench_extractor.embedding.texts import text_id, unsupervised, words_of
from poolbench_extractor.encode import Encoded, PassageTexts, Reading, encode
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder

#: Texts to annotation rows, as `POST /pooler/annotate` answers them.
Annotate = Callable[[list[str]], Sequence[Mapping[str, Any]]]


class PoolingModule(Module):
    """Module that tokenizes texts, runs the model and pools its states.

    It does all three, because pooling strategies need more than token embeddings.

    Args:
        layer: Block index, 0-based.
        max_length: Number of positions that a text is cut to, special tokens included. The default, and the maximum, is
            the model's window.
        reference: Reference from which `load_decoder` loads the model again. Without it, the module cannot be saved.

    Raises:
        ConfigError: `on_failure` or `max_length` is not allowed.
    """

    def __init__(
        self,
        decoder: Decoder,
        pooling: Request,
        layer: int,
        *,
        include_bos: bool = False,
        sinks: SinkRule = LEAVE_OUT,
        annotate: Annotate | None = None,
        on_failure: Literal["raise", "nan"] = "raise",
        max_length: int | None = None,
        reference: ModelRef | None = None,
    ) -> None:
        super().__init__()
        if on_failure not in ("raise", "nan"):
            raise ConfigError(f"on_failure is {on_failure!r}; allowed: raise, nan")
        self.model = decoder.model  # a submodule, so that `to` moves it and `device` finds it
        self.decoder, self.pooling, self.layer = decoder, pooling, layer
        self.include_bos, self.sinks, self.on_failure = include_bos, sinks, on_failure
        self.reference = reference
        self.annotate = annotate if pooling.strategy.reads_annotations else None
        self.max_seq_length = max_length
        self.num_truncated = 0

    @property
    def tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self.decoder.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """Return the number of positions to which texts are cut, or None if nothing bounds it."""
        return self._max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        window = self.decoder.window
        smallest = self.tokenizer.num_special_tokens_to_add() + 1
        if length is not None and (length < smallest or length > (window or length)):
            raise ConfigError(f"max_seq_length {length} is outside {smallest}..{window or ''} of this model")
        self._max_length = length or window

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        return self.decoder.width

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Tokenise texts and cut them to `max_seq_length`. Return the input of `forward`."""
        texts = [(prompt or "") + text for text in inputs]
        ids = [text_id(text) for text in texts]
        reading = Reading(include_bos=self.include_bos)
        encoded = encode(self.decoder, PassageTexts(ids, texts, self._words(ids, texts)), reading)
        passages = encoded if self._max_length is None else [self._cut(passage) for passage in encoded]
        return {"passages": passages, "texts": texts}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Return the features with the pooled vectors as `sentence_embedding`, float32 [B, D].

        Raises:
            InputError: A text failed, and `on_failure` is `raise`.
        """
        passages = features["passages"]
        # sentence-transformers chose the batch
        reading = Reading(limits=BatchLimits(max_passages=len(passages)), sinks=self.sinks)
        with torch.inference_mode(False):  # sentence-transformers turns it on, but S2 needs gradients
            tables = extract(self.decoder, passages, {self.layer: [self.pooling]}, reading=reading)
        (table,) = tables.values()
        rows = zip(features["texts"], table["reason"].to_pylist(), strict=True)
        failed = [f"{shown(text)}: {reason}" for text, reason in rows if reason is not None]
        if failed and self.on_failure == "raise":
            raise InputError(
                f"{len(failed)} of {len(passages)} texts failed in one batch, the first one {failed[0]}; "
                'on_failure="nan" makes them rows of NaN'
            )
        vectors_BD: Tensor = torch.tensor(vector_matrix(table["vector"]))  # a copy: Arrow's memory is read-only
        return {**features, "sentence_embedding": vectors_BD.to(self.decoder.device)}

    def on_model_ready(self, model: Any) -> None:
        """Write the model's name and weight revision into the model card, under which mteb stores results."""
        name = self.reference.id if self.reference else self.decoder.source or "decoder"
        card = model.model_card_data
        card.model_name = f"poolbench/{name.strip('/').replace('/', '-')}-{self.pooling.id}-{self.layer}"
        card.base_model_revision = self.decoder.revision

    def get_config_dict(self) -> dict[str, Any]:
        """Return the configuration that `load` reads: the model's name and revision, and the pooling settings.

        Raises:
            ConfigError: The module has no model reference, or its strategy reads annotations, which are not saved.
        """
        if self.reference is None:
            raise ConfigError("the model was not loaded by name, so that it cannot be saved: give a name or a folder")
        if self.annotate is not None:
            raise ConfigError(f"strategy {self.pooling.id} reads annotations, which are not saved: make it again")
        return {
            "model": self.reference.id,
            "revision": self.decoder.revision,
            "dtype": self.reference.dtype,
            "strategy": self.pooling.id,
            "params": dict(self.pooling.params),
            "layer": self.layer,
            "include_bos": self.include_bos,
            "sinks": asdict(self.sinks),
            "on_failure": self.on_failure,
            "max_length": self._max_length,
        }

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the configuration without the model's weights. Raise the ConfigErrors of `get_config_dict`."""
        self.save_config(output_path)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **_: Any,
    ) -> Self:
        """Load the model and the module from a saved configuration.

        The arguments locate the folder, as in sentence-transformers.

        Raises:
            PoolbenchError: The model cannot be loaded, or has other weights than when the module was saved.
        """
        config = cls.load_config(
            model_name_or_path,
            subfolder,
            token=token,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
        )
        config = {**(init_defaults or {}), **config}
        name, saved_revision = config.pop("model"), config.pop("revision")
        reference = resolve_model(name, dtype=config.pop("dtype"))
        if reference.revision is None:  # of a hub, where one can be asked for
            reference = replace(reference, revision=saved_revision)
        pooling = unsupervised(config.pop("strategy"), config.pop("params"))
        sinks, layer = SinkRule(**config.pop("sinks")), config.pop("layer")
        decoder = load_decoder(reference, ExtractorSettings.load())
        if decoder.revision != saved_revision:
            raise ConfigError(f"model {name} has other weights than when the encoder was saved: {decoder.revision}")
        return cls(decoder, pooling, layer, sinks=sinks, reference=reference, **config)

    def _cut(self, passage: Encoded) -> Encoded:
        assert self._max_length is not None
        cut = truncated(passage, self._max_length)
        self.num_truncated += cut is not passage
        return cut

    def _words(self, ids: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
        if self.annotate is None:
            return {}
        rows = self.annotate(list(texts))
        if len(rows) != len(texts):
            raise InputError(f"annotate answered {len(rows)} rows for {len(texts)} texts")
        return dict(zip(ids, words_of(rows), strict=True))


def truncated(passage: Encoded, limit: int) -> Encoded:
    """Cut a passage to `limit` positions by dropping its last real tokens. Special tokens stay.

    A passage that is short enough, or that would lose all real tokens, is returned unchanged.
    """
    context = passage.context
    surplus = context.num_positions - limit
    if surplus <= 0 or surplus >= len(context.real):
        return passage
    positions = np.delete(np.arange(context.num_positions), context.real[-surplus:])
    assert context.token_ids is not None
    offsets, special, token_ids = context.offsets[positions], context.special[positions], context.token_ids[positions]
    shorter = replace(context, offsets=offsets, special=special, token_ids=token_ids)
    return replace(passage, context=shorter, error=None)
