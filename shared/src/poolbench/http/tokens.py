"""The bearer tokens that a process accepts. They are read again while it runs, so that a token can be replaced."""

import asyncio
import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable, Sequence

from poolbench.errors import ConfigError
from poolbench.settings import ClusterSettings

REREAD_S = 1.0
_LOG = logging.getLogger("poolbench.http")


class Tokens:
    """The tokens that are valid now: `POOLBENCH_TOKEN`, and while it is replaced `POOLBENCH_TOKEN_NEXT`.

    Args:
        read: Returns the tokens, first the one that this process sends itself. `refresh` calls it again. While it
            fails, the tokens that it returned last stay valid.

    Raises:
        ConfigError: There is no token, or `read` fails.
    """

    def __init__(self, read: Callable[[], Sequence[str]]) -> None:
        self._read = read
        self._valid = _required(read())
        self._digests = [_digest(token.encode()) for token in self._valid]
        self._read_at_s = time.monotonic()
        self._problem = ""
        self._reading = threading.Lock()

    @classmethod
    def of_cluster(cls) -> "Tokens":
        """Return the tokens that the settings of this process name."""
        return cls(lambda: ClusterSettings.load().tokens)

    @classmethod
    def fixed(cls, token: str) -> "Tokens":
        """Return one token that never changes. Raise ConfigError if it is empty."""
        return cls(lambda: (token,))

    async def refresh(self) -> None:
        """Read the tokens again if that was more than `REREAD_S` ago, in a thread: a file may be on a slow disk."""
        if time.monotonic() - self._read_at_s >= REREAD_S:
            await asyncio.to_thread(self._reread)

    def valid(self) -> tuple[str, ...]:
        """Return the tokens, first the one to send."""
        return self._valid

    def accept(self, sent: bytes) -> bool:
        """Return whether a client sent a valid token.

        Hashes are compared, and all of them, so that the time tells nothing about a token.
        """
        digest = _digest(sent)
        matches = [hmac.compare_digest(valid, digest) for valid in self._digests]
        return any(matches)

    def _reread(self) -> None:
        """Read the tokens again, one thread at a time: an older result must not come last."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._take_again()
        finally:
            self._read_at_s = time.monotonic()
            self._reading.release()

    def _take_again(self) -> None:
        try:
            tokens = _required(self._read())
        except ConfigError as error:
            if str(error) != self._problem:
                _LOG.warning("the bearer tokens cannot be read again, so the last ones stay valid: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        if tokens != self._valid:
            self._valid, self._digests = tokens, [_digest(token.encode()) for token in tokens]
            _LOG.info("the bearer tokens have changed; valid tokens: %d", len(tokens))


def _required(tokens: Sequence[str]) -> tuple[str, ...]:
    if not tokens or not tokens[0]:
        raise ConfigError("POOLBENCH_TOKEN is empty: no request is answered without a bearer token")
    return tuple(dict.fromkeys(filter(None, tokens)))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
