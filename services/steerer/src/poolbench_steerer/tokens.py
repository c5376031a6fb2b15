"""Text to token ids and back by the model's own tokenizer, and repetition in texts."""

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any

from cachetools import LRUCache, cached
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from poolbench.config import ModelRef
from poolbench.errors import CellError, InputError
from poolbench.model_folders.unreadable import unreadable
from poolbench.settings import SteererSettings
from poolbench.statuses import Status
from poolbench.steps.base import bos_to_add

_LOADED: "LRUCache[tuple[ModelRef, bool], Tokens]" = LRUCache(2)
_LOCK = Lock()  # of the cache; it is not held while a tokenizer loads
_BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_LOADERS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")


class Tokens:
    """The tokenizer of one model."""

    def __init__(self, tokenizer: Any, *, add_bos: bool = False) -> None:
        """Take a tokenizer; raise ConfigError if a BOS is to be added and it defines none."""
        self._tokenizer, self._bos = tokenizer, bos_to_add(tokenizer) if add_bos else None
        self._bytes: dict[int, bytes] = {}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in str(backend.decoder)

    @property
    def info(self) -> dict[str, Any]:
        """Return the tokenizer's class, size, special tokens and chat template."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        special = {name: getattr(self._tokenizer, name, None) for name in names}
        return {"tokenizer_class": type(self._tokenizer).__name__, "vocab_size": self.size, **special}

    @property
    def size(self) -> int:
        """Return the number of tokens in the vocabulary, added tokens included."""
        return len(self._tokenizer)

    @property
    def num_leading_special(self) -> int:
        """Return special tokens that stand before every text (BOS)."""
        special = set(self._tokenizer.all_special_ids)
        ids = self.encode("a")
        return next((index for index, token in enumerate(ids) if token not in special), len(ids))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return token ids with the special tokens of the tokenizer, and with the BOS if `add_bos` was set."""
        ids = tuple(self._tokenizer(text)["input_ids"])
        return ids if self._bos is None or ids[:1] == (self._bos,) else (self._bos, *ids)

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Return token ids without special tokens, for a text that follows a prefix."""
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_reply(self, instruction: str, opening: str) -> tuple[int, ...]:
        """Return the tokens of a chat with an instruction, and of a reply that begins with `opening` and goes on.

        Raises CellError (`not_implemented`) if there is no chat template, and InputError if the template refuses the
        messages.
        """
        if not self._tokenizer.chat_template:
            raise CellError(Status.NOT_IMPLEMENTED, "prompting needs a chat model, and this one has no chat template")
        messages = [{"role": "user", "content": instruction}, {"role": "assistant", "content": opening}]
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
        except Exception as error:  # templates raise what they like
            raise InputError(f"the model's chat template refuses these messages: {error}") from error
        return self.encode_plain(str(text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of generated tokens, without special tokens."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def decode_all(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens as their names."""
        return str(self._tokenizer.decode(list(token_ids)))

    def decode_one(self, token_id: int) -> str:
        """Return a token as text: a special token by its name, a part of a character by its token id."""
        try:
            return self.bytes_of(token_id).decode()
        except UnicodeDecodeError:
            return f"token_id:{token_id}"

    def bytes_of(self, token_id: int) -> bytes:
        """Return the UTF-8 bytes that a token adds to a text, including a leading space or a part of a character."""
        if token_id not in self._bytes:
            self._bytes[token_id] = self._read_bytes(token_id)
        return self._bytes[token_id]

    def _read_bytes(self, token_id: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        if piece is None or token_id in self._tokenizer.added_tokens_decoder:
            return str(self._tokenizer.decode([token_id])).encode()
        if self._is_byte_level and all(char in _BYTE_OF for char in piece):
            return bytes(_BYTE_OF[char] for char in piece)
        if match := _BYTE_FALLBACK.fullmatch(piece):
            return bytes.fromhex(match[1])
        if "\u2581" in piece:  # SentencePiece's mark of a space, which decoding a first token drops
            return piece.replace("\u2581", " ").encode()
        return str(self._tokenizer.decode([token_id])).encode()


@cached(_LOADED, key=lambda model, add_bos=False, **_: (model, add_bos), lock=_LOCK)
def tokens_of(model: ModelRef, *, add_bos: bool = False, trust_remote_code: bool = False) -> Tokens:
    """Return the tokenizer of a model, which is loaded once. Raise ModelError if the model has none."""
    return _load(model, add_bos, trust_remote_code)


async def loaded_tokens(model: ModelRef, *, trust_remote_code: bool = False) -> Tokens:
    """Return the tokenizer of a model in an event loop, as `tokens_of`. Slow loads do not delay other requests."""
    with _LOCK:
        tokens = _LOADED.get((model, False))
    if tokens is not None:
        return tokens
    load = partial(tokens_of, model, trust_remote_code=trust_remote_code)
    return await asyncio.get_running_loop().run_in_executor(_LOADERS, load)


def _load(model: ModelRef, add_bos: bool, trust_remote_code: bool) -> Tokens:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model.source, revision=None if model.is_local else model.revision, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # of whichever package reads this kind of tokenizer
        trust = SteererSettings.variable("trust_remote_code")
        raise unreadable(f"the tokenizer of {model.source}", model, error, trust) from error
    return Tokens(tokenizer, add_bos=add_bos)


def repeated_4grams(token_ids: Sequence[int]) -> float | None:
    """Return the share of 4-grams that occurred earlier in the text, or None for fewer than four tokens."""
    grams = [tuple(token_ids[start : start + 4]) for start in range(len(token_ids) - 3)]
    return 1.0 - len(set(grams)) / len(grams) if grams else None
