"""An encoder object with the interface of ``SentenceTransformer``: any decoder, layer and pooling strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from poolbench.config import resolve_model
from poolbench.errors import ConfigError
from poolbench_extractor.config import Deployment
from poolbench_extractor.embedding.similarity import SIMILARITIES, pairwise_of, similarity_of
from poolbench_extractor.embedding.textpooler import Annotate, TextPooler, TruncationWarning
from poolbench_extractor.embedding.texts import unsupervised
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder
from poolbench_extractor.passes import Progress

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["PoolingEncoder", "TruncationWarning"]

Vectors = np.ndarray | Tensor | list[Tensor]


class PoolingEncoder:
    """Texts to vectors by a model, a layer and a pooling strategy.

    The interface has no way to answer that a text failed, so this differs from ``POST /embed``: a text longer than
    ``max_seq_length`` is cut, with a ``TruncationWarning``, and counted in ``num_truncated``; a text that cannot be
    computed (no real token, states that are not finite) raises, or with ``on_failure="nan"`` is a row of NaN.

    Args:
        model: Preset id, folder or Hugging Face id, or a decoder that is loaded already.
        strategy: Id of a pooling strategy that needs no labels.
        layer: Block index; negative ones count from the end.
        params: Parameters of the strategy.
        revision: Of the model.
        dtype: Of the model.
        max_seq_length: Positions of a text, special tokens included; by default and at most the model's window.
        include_bos: Whether a special token at position 0 counts as a real token.
        annotate: Annotates texts, for strategies that read annotations.
        prompts: Texts put before every sentence, by name.
        default_prompt_name: The prompt of calls that name none.
        similarity_fn_name: Out of ``SIMILARITIES``.
        on_failure: ``raise`` or ``nan``.

    Raises:
        PoolbenchError: A name does not exist, or the strategy cannot be computed from texts alone.
    """

    def __init__(
        self,
        model: str | Decoder,
        strategy: str = "A1_mean",
        layer: int = -1,
        *,
        params: Mapping[str, Any] | None = None,
        revision: str | None = None,
        dtype: str | None = None,
        max_seq_length: int | None = None,
        include_bos: bool = False,
        annotate: Annotate | None = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str = "cosine",
        on_failure: Literal["raise", "nan"] = "raise",
    ) -> None:
        pooling = unsupervised(strategy, params)
        decoder = model if isinstance(model, Decoder) else _load(model, revision, dtype)
        self.pooler = TextPooler(
            decoder, pooling, decoder.layer(layer), include_bos, annotate, on_failure, max_seq_length
        )
        self.prompts, self.default_prompt_name = dict(prompts or {}), default_prompt_name
        self.similarity_fn_name = similarity_fn_name
        self._prompt(None, default_prompt_name)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.pooler.decoder.device

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.pooler.decoder.tokenizer

    @property
    def num_truncated(self) -> int:
        """Texts that were cut so far."""
        return self.pooler.num_truncated

    @property
    def max_seq_length(self) -> int | None:
        """Positions of a text; longer ones are cut. None where nothing bounds them."""
        return self.pooler.max_length

    @max_seq_length.setter
    def max_seq_length(self, length: int | None) -> None:
        self.pooler.limit_to(length)

    @property
    def similarity_fn_name(self) -> str:
        """Which similarity ``similarity`` and ``similarity_pairwise`` compute."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, name: str) -> None:
        if name not in SIMILARITIES:
            raise ConfigError(f"similarity {name!r} is unknown; allowed: {', '.join(SIMILARITIES)}")
        self._similarity_fn_name = name

    def get_max_seq_length(self) -> int | None:
        """As ``max_seq_length``."""
        return self.max_seq_length

    def get_embedding_dimension(self) -> int:
        """Width of the vectors."""
        return self.pooler.decoder.width

    get_sentence_embedding_dimension = get_embedding_dimension

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
    ) -> Vectors:
        """Vectors of sentences, in their order.

        Args:
            sentences: One text, or several.
            prompt_name: Which of ``prompts`` is put before every sentence.
            prompt: A text to be put there instead.
            batch_size: Texts of a forward pass at most; changes speed, never results.
            show_progress_bar: Whether to draw one.
            convert_to_numpy: Float32 [N, D]; else a list of N tensors.
            convert_to_tensor: One tensor on the device of the model; goes before ``convert_to_numpy``.
            device: Moves the model there first.
            normalize_embeddings: Divide each vector by its L2 norm.

        Returns:
            [N, D], or [D] for a single text.

        Raises:
            InputError: A text cannot be computed, and ``on_failure`` is ``raise``.
        """
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        if device is not None:
            self.pooler.decoder.model.to(device)
        before = self._prompt(prompt, prompt_name)
        encoded = self.pooler.tokenize([before + text for text in texts]) if before else self.pooler.tokenize(texts)
        with _drawn(len(texts), bool(show_progress_bar)) as progress:
            vectors_ND = self.pooler.pool(encoded, batch_size, progress)
        if normalize_embeddings:
            vectors_ND = torch.nn.functional.normalize(vectors_ND, dim=1)
        if convert_to_tensor:
            vectors_ND = vectors_ND.to(self.device)
        rows: Vectors = vectors_ND if convert_to_tensor else vectors_ND.numpy() if convert_to_numpy else [*vectors_ND]
        return rows[0] if isinstance(sentences, str) else rows

    def encode_query(self, sentences: str | Sequence[str], **options: Any) -> Vectors:
        """As ``encode``, with the prompt named ``query`` where there is one."""
        return self.encode(sentences, **{**self._named("query"), **options})

    def encode_document(self, sentences: str | Sequence[str], **options: Any) -> Vectors:
        """As ``encode``, with the prompt named ``document`` where there is one."""
        return self.encode(sentences, **{**self._named("document"), **options})

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Similarity of every vector with every other, [N, M]."""
        return similarity_of(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Similarity of the vectors of one row each, [N]."""
        return pairwise_of(self.similarity_fn_name, embeddings1, embeddings2)

    def as_sentence_transformer(self) -> SentenceTransformer:
        """A genuine ``SentenceTransformer`` around the same model, whose ``encode`` gives the same vectors.

        Raises:
            ConfigError: sentence-transformers is not installed.
        """
        try:
            from poolbench_extractor.embedding.sentence import sentence_transformer
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("sentence_transformers"):
                raise
            raise ConfigError("the package sentence-transformers is not installed; install version 6") from None
        names = {"default_prompt_name": self.default_prompt_name, "similarity_fn_name": self.similarity_fn_name}
        return sentence_transformer(self.pooler, prompts=self.prompts, **names)

    def _named(self, name: str) -> dict[str, str]:
        return {"prompt_name": name} if name in self.prompts else {}

    def _prompt(self, prompt: str | None, name: str | None) -> str:
        name = name if name is not None else self.default_prompt_name
        if prompt is not None or name is None:
            return prompt or ""
        if name not in self.prompts:
            raise ConfigError(f"prompt {name!r} is unknown; known: {', '.join(self.prompts) or 'none'}")
        return self.prompts[name]


def _load(model: str, revision: str | None, dtype: str | None) -> Decoder:
    return load_decoder(resolve_model(model, revision=revision, dtype=dtype), Deployment.from_environment())


@contextmanager
def _drawn(total: int, show: bool) -> Iterator[Progress]:
    """A progress bar while texts are pooled."""
    from tqdm import tqdm

    with tqdm(total=total, desc="texts", disable=not show) as bar:
        yield lambda done, _: bar.update(done - bar.n)
