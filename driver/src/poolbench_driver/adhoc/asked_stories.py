"""Pairs of stories that a language model writes: requests to an OpenAI-compatible endpoint, and the file of the set."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import NamedTuple

import httpx
import yaml

from poolbench.contracts.wire import bearer
from poolbench.errors import ConfigError, CorpusError, EndpointError, shown
from poolbench.http.tls import client_context
from poolbench_corpora.io import write_at_once
from poolbench_corpora.stories.prompts import NO_TAGS, prompts_of, prompts_version, stories_of

OK, REFUSED, TIMEOUT, SERVER_ERROR = "ok", "refused", "timeout", "server error"
#: Bytes of an answer; two stories of 20,000 characters as JSON have less.
MAX_ANSWER = 1 << 20
#: Longest wait between two tries of one prompt.
_LONGEST_WAIT_S = 30.0
#: What another key or address would change, for all prompts alike.
_OF_ALL = {401: "it does not accept the key", 403: "the key may not do this", 404: "it has no such model or path"}


class Prompt(NamedTuple):
    """A request for one pair of stories."""

    subject: str
    name: str  # name of the prompt
    text: str


class Outcome(NamedTuple):
    """What became of a prompt: what each of its answers was, and the pair of stories, if one was usable."""

    prompt: Prompt
    answers: list[str]
    row: dict[str, str] | None


class _UnusableError(Exception):
    """An answer without stories, and how long to wait before the next try; None: another try is of no use."""

    def __init__(self, kind: str, wait_s: float | None = 0.0) -> None:
        super().__init__(kind)
        self.kind, self.wait_s = kind, wait_s


@dataclass
class Writer:
    """A model behind an endpoint that is asked for stories; several threads may use it.

    Args:
        endpoint: Base of the API, such as https://host/v1.
        model: Name that the endpoint knows it by.
        key: Key of the endpoint; it is sent, and stands in no file and no message.
        completions: Whether prompts go to /completions: the model has no chat template.
        max_tokens: Most tokens of an answer.
        temperature: Of sampling.
        tries: Requests for one pair of stories at most.
        timeout_s: Time of one request.
        reason: What the endpoint said to the first request that it refused.
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
                f"--endpoint {shown(self.endpoint)}: give an address such as https://host/v1, without name or key"
            )
        if self.key and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError("the key has characters that cannot be sent; set the variable of --key-env again")
        headers = bearer(self.key) if self.key else {}
        self._closed, self._lock = Event(), Lock()
        self._http = httpx.Client(verify=client_context(), timeout=self.timeout_s, headers=headers)

    def close(self) -> None:
        """Close all connections and end all waits; requests in work fail."""
        self._closed.set()
        self._http.close()

    def ask(self, prompt: Prompt) -> Outcome:
        """Ask until an answer is usable, `tries` times at most.

        Raise EndpointError if the endpoint cannot be reached, or refuses the key or the model: no prompt would work.
        """
        answers: list[str] = []
        for number in range(self.tries):
            try:
                answer, model = self._answer(prompt.text)
                high, low = stories_of(answer)
            except _UnusableError as error:
                answers.append(error.kind)
                if error.wait_s is None:
                    break
                if error.wait_s and number + 1 < self.tries:
                    self._closed.wait(min(error.wait_s * 2**number, _LONGEST_WAIT_S))
            except CorpusError as error:
                answers.append(str(error))
            else:
                row = {"subject": prompt.subject, "story1": high, "story2": low, "model": model, "prompt": prompt.name}
                return Outcome(prompt, [*answers, OK], row)
        return Outcome(prompt, answers, None)

    def _answer(self, text: str) -> tuple[str, str]:
        """Return the text of an answer, and the model that the endpoint names. Raise _UnusableError for none."""
        content = {"prompt": text} if self.completions else {"messages": [{"role": "user", "content": text}]}
        body = {"model": self.model, **content, "max_tokens": self.max_tokens, "temperature": self.temperature}
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
            raise _UnusableError(NO_TAGS) from None
        if refused:
            raise _UnusableError(REFUSED)
        return str(answer or ""), model_name if isinstance(model_name, str) and model_name else self.model

    def _bounded(self, response: httpx.Response) -> Iterator[bytes]:
        """Yield the content, up to `MAX_ANSWER` bytes and for `timeout_s`: a server may send forever."""
        end_s, size = time.monotonic() + self.timeout_s, 0
        for part in response.iter_bytes():
            size += len(part)
            if size > MAX_ANSWER or time.monotonic() > end_s:
                raise _UnusableError(TIMEOUT if size <= MAX_ANSWER else NO_TAGS)
            yield part

    def _require_success(self, response: httpx.Response, data: bytes) -> None:
        status = response.status_code
        if status in _OF_ALL:
            raise EndpointError(f"{self.address} answered {status}: {_OF_ALL[status]}")
        if status == 429 or status >= 500:
            raise _UnusableError(SERVER_ERROR, _seconds(response.headers.get("retry-after", "")))
        if not response.is_success:
            text = data[:300].decode("utf-8", "replace")
            with self._lock:
                self.reason = self.reason or f"{status} {shown(text.replace(self.key, '...') if self.key else text)}"
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


@dataclass
class StoryFile:
    """The file of a set that is being written, and beside it what became of all answers."""

    path: Path
    counts: Counter[str] = field(default_factory=Counter)  # answers by what they were, of all commands
    failed: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # answers to prompts without stories

    def __post_init__(self) -> None:
        """Read what earlier commands wrote. Raise CorpusError for a file that is not a set of stories."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.written: set[tuple[str, str]] = set()
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.is_file() else []
        whole = b"".join(lines).endswith(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                self.written.add((row["subject"], row.get("prompt", "")))
            except (ValueError, LookupError, TypeError, AttributeError):
                if number == len(lines) and not whole:  # an earlier command was killed while it wrote
                    lines.pop()
                    break
                raise CorpusError(
                    f"{self.path}, line {number}: no row of a set of stories; give another --name"
                ) from None
        if lines and not whole:
            write_at_once(self.path, "".join(f"{line.decode().rstrip()}\n" for line in lines))
        if self._beside.is_file():
            try:
                earlier = yaml.safe_load(self._beside.read_text("utf-8"))
                self.counts.update(earlier["answers"])
                self.failed = {(row["subject"], row["prompt"]): row["answers"] for row in earlier["failed"]}
            except (yaml.YAMLError, ValueError, LookupError, TypeError):
                raise CorpusError(f"{self._beside} is damaged: remove it, and its counts begin again") from None

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".made.yaml")

    def prompts(self, subjects: Sequence[str]) -> list[Prompt]:
        """Return the prompts for pairs of stories that the file has not."""
        prompts = (Prompt(subject, *item) for subject in subjects for item in prompts_of(subject).items())
        return [prompt for prompt in prompts if prompt[:2] not in self.written]

    def add(self, outcome: Outcome) -> None:
        """Count what became of a prompt, and append its row."""
        at = outcome.prompt[:2]
        self.counts.update(outcome.answers)
        self.failed.pop(at, None)
        if outcome.row is None:
            self.failed[at] = outcome.answers
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(outcome.row, ensure_ascii=False)}\n")
        self.written.add(at)

    def write_counts(self, writer: Writer) -> None:
        """Write what became of all answers beside the file."""
        failed = [
            {"subject": subject, "prompt": name, "answers": kinds} for (subject, name), kinds in self.failed.items()
        ]
        facts = {"model": writer.model, "endpoint": writer.endpoint, "prompts_version": prompts_version()}
        facts |= {"pairs": len(self.written), "answers": dict(sorted(self.counts.items())), "failed": failed}
        write_at_once(self._beside, yaml.safe_dump(facts, sort_keys=False, allow_unicode=True))


def ask_for_stories(
    file: StoryFile, writer: Writer, prompts: Sequence[Prompt], parallel: int, progress: Callable[[], None]
) -> None:
    """Ask for the stories of each prompt, and write each pair when it is there.

    An interruption, or an endpoint that cannot be used, leaves a file that the next command continues. The threads are
    daemons, because a request in work cannot be ended and may take `timeout_s`.
    """
    waiting, outcomes = SimpleQueue[Prompt](), SimpleQueue[Outcome | Exception]()
    for prompt in prompts:
        waiting.put(prompt)

    def work() -> None:
        try:
            while True:
                outcomes.put(writer.ask(waiting.get_nowait()))
        except Empty:
            return
        except Exception as error:  # the main thread raises it
            outcomes.put(error)

    try:
        for _ in range(min(parallel, len(prompts))):
            Thread(target=work, daemon=True).start()
        for _ in prompts:
            outcome = outcomes.get()
            if isinstance(outcome, Exception):
                raise outcome
            file.add(outcome)
            progress()
    finally:
        writer.close()
        file.write_counts(writer)
