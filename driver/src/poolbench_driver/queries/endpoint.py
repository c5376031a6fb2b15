"""A language model behind an OpenAI-compatible endpoint, which is asked until an answer is usable."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeVar

import httpx

from poolbench.contracts.wire import bearer
from poolbench.errors import ConfigError, CorpusError, EndpointError, shown
from poolbench.http.tls import client_context

OK, REFUSED, TIMEOUT, SERVER_ERROR, MALFORMED = "ok", "refused", "timeout", "server error", "malformed"
#: Bytes of an answer; two stories of 20,000 characters as JSON have less.
MAX_ANSWER = 1 << 20
#: Longest wait between two tries of one prompt.
_LONGEST_WAIT_S = 30.0
#: What another key or address would change, for all prompts alike.
_OF_ALL = {401: "it does not accept the key", 403: "the key may not do this", 404: "it has no such model or path"}

Item = TypeVar("Item")
Value = TypeVar("Value")


class _UnusableError(Exception):
    """Raised for an answer without text. `wait_s` is the wait before the next try, or None if tries are useless."""

    def __init__(self, kind: str, wait_s: float | None = 0.0) -> None:
        super().__init__(kind)
        self.kind, self.wait_s = kind, wait_s


@dataclass(frozen=True)
class Reply(Generic[Value]):
    """The result of a prompt: a description of each answer, and the value that was read from the usable answer."""

    answers: list[str]
    value: Value | None
    model: str  # as the endpoint names it


@dataclass
class EndpointModel:
    """A model behind an endpoint. Several threads may use it.

    Args:
        endpoint: Base of the API, such as https://host/v1.
        model: Name of the model at the endpoint. If empty, the endpoint chooses a model.
        key: Key of the endpoint. It is sent, but never written to a file or a message.
        completions: Whether prompts go to /completions: the model has no chat template.
        max_tokens: Largest number of tokens of an answer.
        temperature: Temperature of sampling.
        tries: Largest number of requests for one prompt.
        timeout_s: Time limit of one request.
        reason: The endpoint's message for the first request that it refused.
    """

    endpoint: str
    model: str
    key: str | None = field(default=None, repr=False)
    completions: bool = False
    max_tokens: int = 1000
    temperature: float = 1.0
    tries: int = 3
    timeout_s: float = 120.0
    reason: str = ""

    def __post_init__(self) -> None:
        """Open the connection. Raise ConfigError for an address or a key that cannot be used."""
        self.address = f"{self.endpoint.rstrip('/')}/{'' if self.completions else 'chat/'}completions"
        if not _is_base(self.endpoint):
            raise ConfigError(
                f"{shown(self.endpoint)} is not an endpoint: give an address such as https://host/v1, without name or "
                "key"
            )
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError("the key has characters that cannot be sent; set its environment variable again")
        headers = bearer(self.key) if self.key else {}
        self._closed, self._lock = Event(), Lock()
        self._http = httpx.Client(verify=client_context(), timeout=self.timeout_s, headers=headers)

    def close(self) -> None:
        """Close all connections and end all waits. Requests in progress fail."""
        self._closed.set()
        self._http.close()

    def ask(self, text: str, read: Callable[[str], Value]) -> Reply[Value]:
        """Ask until an answer is usable, `tries` times at most.

        Args:
            text: The prompt.
            read: Returns the value of an answer, or raises CorpusError if the answer is not usable.

        Raises:
            EndpointError: The endpoint cannot be reached, or refuses the key or the model: no prompt would work.
        """
        answers: list[str] = []
        for number in range(self.tries):
            try:
                answer, model = self._answer(text)
                value = read(answer)
            except _UnusableError as error:
                answers.append(error.kind)
                if error.wait_s is None:
                    break
                if error.wait_s and number + 1 < self.tries:
                    self._closed.wait(min(error.wait_s * 2**number, _LONGEST_WAIT_S))
            except CorpusError as error:
                answers.append(str(error))
            else:
                return Reply([*answers, OK], value, model)
        return Reply(answers, None, self.model)

    def _answer(self, text: str) -> tuple[str, str]:
        """Return the text of an answer, and the model that the endpoint names. Raise _UnusableError for none."""
        body: dict[str, Any] = (
            {"prompt": text} if self.completions else {"messages": [{"role": "user", "content": text}]}
        )
        body |= {"max_tokens": self.max_tokens, "temperature": self.temperature}
        body |= {"model": self.model} if self.model else {}
        try:
            with self._http.stream("POST", self.address, json=body) as response:
                data = b"".join(self._bounded(response))
        except httpx.TimeoutException as error:
            if isinstance(error, httpx.ConnectTimeout):
                raise EndpointError(f"{self.endpoint} cannot be reached: {error or 'no connection in time'}") from None
            raise _UnusableError(TIMEOUT) from None
        except httpx.ConnectError as error:
            raise EndpointError(f"{self.endpoint} cannot be reached: {error}") from None
        except httpx.HTTPError:  # the connection broke
            raise _UnusableError(SERVER_ERROR, 1.0) from None
        self._require_success(response, data)
        try:
            message = json.loads(data)
            choice = message["choices"][0]
            answer = choice["text"] if self.completions else choice["message"]["content"]
            refused = choice.get("finish_reason") == "content_filter" or not (
                self.completions or choice["message"].get("refusal") is None
            )
            model_name = message.get("model")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise _UnusableError(MALFORMED) from None
        if refused:
            raise _UnusableError(REFUSED)
        model = model_name if isinstance(model_name, str) and model_name else self.model
        return self._without_key(str(answer or "")), model

    def _without_key(self, text: str) -> str:
        return text.replace(self.key, "...") if self.key else text

    def _bounded(self, response: httpx.Response) -> Iterator[bytes]:
        """Yield the content, up to `MAX_ANSWER` bytes and for `timeout_s`: a server may send forever."""
        end_s, size = time.monotonic() + self.timeout_s, 0
        for part in response.iter_bytes():
            size += len(part)
            if size > MAX_ANSWER or time.monotonic() > end_s:
                raise _UnusableError(TIMEOUT if size <= MAX_ANSWER else MALFORMED)
            yield part

    def _require_success(self, response: httpx.Response, data: bytes) -> None:
        status = response.status_code
        if status in _OF_ALL:
            raise EndpointError(f"{self.address} answered {status}: {_OF_ALL[status]}")
        if status == 429 or status >= 500:
            raise _UnusableError(SERVER_ERROR, _seconds(response.headers.get("retry-after", "")))
        if not response.is_success:
            text = self._without_key(data[:300].decode("utf-8", "replace"))
            with self._lock:
                self.reason = self.reason or f"{status} {shown(text)}"
            raise _UnusableError(REFUSED, None)


def _is_base(address: str) -> bool:
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host) and not (url.userinfo or url.query)


def _seconds(text: str) -> float:
    """Return the seconds of `Retry-After`, 1 for another text."""
    return float(text) if text.isdecimal() else 1.0


def in_parallel(items: Sequence[Item], work: Callable[[Item], Value], parallel: int) -> Iterator[Value]:
    """Yield the results of `work` for the items, in the order in which they end. Errors of `work` are raised here.

    A caller that stops early leaves the other items alone. The threads are daemons, because a request in work cannot
    be ended.
    """
    waiting, results = SimpleQueue[Item](), SimpleQueue[Value | Exception]()
    for item in items:
        waiting.put(item)

    def take() -> None:
        try:
            while True:
                results.put(work(waiting.get_nowait()))
        except Empty:
            return
        except Exception as error:  # the main thread raises it
            results.put(error)

    try:
        for _ in range(min(parallel, len(items))):
            Thread(target=take, daemon=True).start()
        for _ in items:
            result = results.get()
            if isinstance(result, Exception):
                raise result
            yield result
    finally:
        with suppress(Empty):
            while True:
                waiting.get_nowait()
