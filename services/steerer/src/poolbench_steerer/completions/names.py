"""Names of the tokens in log-probabilities, also of those that are part of a character: vLLM calls all of these ""."""

from codecs import getincrementaldecoder
from typing import Any

from poolbench_steerer.tokens import Tokens

_ID = "token_id:"


class TokenNames:
    """Names the tokens of one answer, or of the chunks of a stream, whose tokens vLLM has given as ids."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._places: dict[int, _Place] = {}

    def name(self, choice: dict[str, Any]) -> None:
        """Put names, bytes and places in a text in place of the ids of a choice."""
        logprobs = choice.get("logprobs")
        if logprobs is None:
            return
        for entry in logprobs.get("content") or ():  # of a chat
            for token in (entry, *entry["top_logprobs"]):
                token_id = _id(token["token"])
                token |= {"token": self._tokens.decode_one(token_id), "bytes": list(self._tokens.bytes_of(token_id))}
        if "tokens" in logprobs:
            ids, place = [_id(name) for name in logprobs["tokens"]], self._places.setdefault(choice["index"], _Place())
            logprobs["tokens"] = [self._tokens.decode_one(token_id) for token_id in ids]
            logprobs["text_offset"] = [place.before(self._tokens.bytes_of(token_id)) for token_id in ids]
            logprobs["top_logprobs"] = [step and self._by_name(step) for step in logprobs["top_logprobs"]]

    def _by_name(self, step: dict[str, float]) -> dict[str, float]:
        """Return log-probabilities by name; of tokens with the same name the likeliest."""
        ascending = sorted(step.items(), key=lambda entry: entry[1])
        return {self._tokens.decode_one(_id(name)): value for name, value in ascending}


class _Place:
    """Where the next token of a text begins, in characters; tokens may hold parts of one."""

    def __init__(self) -> None:
        self._characters = getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def before(self, token: bytes) -> int:
        """Return where a token begins, and go on behind it."""
        begins = self._offset
        self._offset += len(self._characters.decode(token))
        return begins


def _id(name: str) -> int:
    return int(name.removeprefix(_ID))
