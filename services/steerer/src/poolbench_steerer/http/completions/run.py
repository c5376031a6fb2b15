"""One completion call on the engine: its choices, and how much of them was sent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from poolbench.errors import InputError, TooLargeError
from poolbench_steerer.concurrency import run_all
from poolbench_steerer.engine import GenerationRequest, Piece, SteeringEngine
from poolbench_steerer.engine.requests import Scores, Step
from poolbench_steerer.errors import StreamBrokenError
from poolbench_steerer.http.bounds import MAX_SEED
from poolbench_steerer.http.completions.body import CompletionBody
from poolbench_steerer.http.steering import resolve, resolve_readings
from poolbench_steerer.plugin.receipts import Receipt
from poolbench_steerer.plugin.spec import Reading, Steering
from poolbench_steerer.tokens import Tokens

_REPLACEMENT = "�"  # what a decoder writes for bytes that do not make a whole character yet
_CONTEXT = 6  # tokens before the undecided ones that are decoded with them: spaces depend on what stands before
MAX_LOGPROB_VALUES = 2**19


class TextStream:
    """Decodes a growing list of tokens. Released text, which a client may already have, never changes.

    Attributes:
        text: The released text.
        stopped: Whether a stop string came; nothing after it is released.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._ids: list[int] = []
        self._num_decided = 0  # tokens whose text is known
        self._held = ""  # decided text that may be the beginning of a stop string
        self.text = ""
        self.stopped = False

    def push(self, token_ids: Sequence[int]) -> None:
        """Add tokens."""
        for token in token_ids:
            if self.stopped:
                return
            self._ids.append(token)
            self._release(self._decided(final=False), final=False)

    def finish(self) -> None:
        """Release what was held back."""
        if not self.stopped:
            self._release(self._decided(final=True), final=True)

    def _decided(self, final: bool) -> str:
        start = max(0, self._num_decided - _CONTEXT)
        before = self._decode(self._ids[start : self._num_decided])
        whole = self._decode(self._ids[start:])
        if whole.endswith(_REPLACEMENT) and not final:
            return ""
        self._num_decided = len(self._ids)
        return whole[len(before) :]

    def _release(self, added: str, final: bool) -> None:
        held = self._held + added
        matches = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if matches:
            self.text += held[: min(matches)[0]]
            self._held, self.stopped = "", True
            return
        keep = 0 if final else _open_end(held, self._stops)
        self.text += held[: len(held) - keep]
        self._held = held[len(held) - keep :]


def _open_end(text: str, stops: Sequence[str]) -> int:
    """Return length of the longest end of `text` that a stop string begins with."""
    longest = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


@dataclass(frozen=True)
class Part:
    """The next part of a choice.

    The last part of each choice has a finish reason, and a receipt if it was steered. The first part has the prompt's
    tokens and their log-probabilities, if requested, and those of its scores.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Step, ...] = ()
    finish_reason: str | None = None
    receipt: Receipt | None = None
    prompt_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[Step | None, ...] = ()
    scores: tuple[Scores, ...] = ()
    prompt_scores: tuple[Scores | None, ...] = ()

    @classmethod
    def joined(cls, parts: Sequence["Part"]) -> "Part":
        """Return the parts of a choice as one."""
        first, last = parts[0], parts[-1]
        return cls(
            first.index,
            "".join(part.text for part in parts),
            tuple(chain.from_iterable(part.token_ids for part in parts)),
            tuple(chain.from_iterable(part.logprobs for part in parts)),
            last.finish_reason,
            last.receipt,
            first.prompt_ids,
            first.prompt_logprobs,
            tuple(chain.from_iterable(part.scores for part in parts)),
            first.prompt_scores,
        )


@dataclass
class Choice:
    """A choice, and how much of it was sent, by any engine."""

    index: int
    prompt_ids: tuple[int, ...]
    seed: int
    given_ids: list[int] = field(default_factory=list)
    given_text: str = ""
    given_prompt: bool = False
    done: bool = False


class Completion:
    """The job of one call. After the death of an engine, it is called again and continues."""

    def __init__(self, body: CompletionBody, choices: Sequence[Choice], tokens: Tokens, units: list[float]) -> None:
        self.body = body
        self.choices = choices
        self._tokens = tokens
        self._units = units
        self._num_new = max(1, body.max_tokens)  # the engine generates one token at least

    async def run(self, engine: SteeringEngine, emit: Callable[[Part], None]) -> None:
        """Generate all choices at once; raise StreamBrokenError when a new engine does not repeat the old tokens."""
        for choice in self.choices:
            engine.limits.check_room(len(choice.prompt_ids), self._num_new, f"choice {choice.index}", spare=0)
        check_vocabulary(self.choices[:: self.body.n], engine.llm.model_config.get_vocab_size())
        steering = await resolve(engine, self.body.steering, self._units)
        readings = await resolve_readings(engine, self.body.readings)
        requests = [(choice, self._request(choice, steering, readings)) for choice in self.choices if not choice.done]
        ids = {vector_id for _, request in requests for vector_id in request.vector_ids}
        with engine.bank.in_use(ids) as slots:
            await run_all([self._follow(engine, choice, request, slots, emit) for choice, request in requests])

    async def _follow(
        self, engine: SteeringEngine, choice: Choice, request: GenerationRequest, slots: dict[str, int],
        emit: Callable[[Part], None],
    ) -> None:  # fmt: skip
        writer = _Writer(choice, TextStream(self._tokens.decode, self.body.stops), emit)
        in_steps = self.body.stream or bool(self.body.stops)

        def take(piece: Piece) -> bool:
            return writer.take(piece if self.body.max_tokens else piece.without_tokens())

        writer.finish(await engine.follow(request, slots, take, in_steps=in_steps))

    def _request(self, choice: Choice, steering: Steering | None, readings: tuple[Reading, ...]) -> GenerationRequest:
        return GenerationRequest(
            choice.prompt_ids,
            self._num_new,
            steering,
            temperature=self.body.temperature,
            top_p=self.body.top_p,
            seed=choice.seed,
            ignore_eos=self.body.ignore_eos,
            logprobs=self.body.logprobs,
            prompt_logprobs=self.body.logprobs if self.body.echo else None,
            readings=readings,
            read_prompt=self.body.echo,
        )


class _Writer:
    """Emits what is new in a choice; the end only when its receipt is there."""

    def __init__(self, choice: Choice, text: TextStream, emit: Callable[[Part], None]) -> None:
        self._choice, self._text, self._emit = choice, text, emit
        self._num_tokens = 0
        self._last = Piece((), None, None)

    def take(self, piece: Piece) -> bool:
        """Take tokens of the engine; return True when a stop string has come."""
        fresh = self._fresh(piece)
        self._text.push(piece.token_ids)
        if piece.finish_reason is not None or self._text.stopped:
            self._last = fresh
            return self._text.stopped
        if fresh.token_ids:
            self._emit(self._part(fresh))
        return False

    def finish(self, receipt: Receipt | None) -> None:
        """Emit the end."""
        self._text.finish()
        reason = "stop" if self._text.stopped else self._last.finish_reason
        self._emit(self._part(self._last, reason, receipt))
        self._choice.done = True

    def _fresh(self, piece: Piece) -> Piece:
        """Return the part of a piece that was not sent before an engine died."""
        repeated_ids = self._choice.given_ids[self._num_tokens : self._num_tokens + len(piece.token_ids)]
        self._num_tokens += len(piece.token_ids)
        if list(piece.token_ids[: len(repeated_ids)]) != repeated_ids:
            raise StreamBrokenError(
                f"the engine died after {len(self._choice.given_ids)} tokens of choice {self._choice.index}, and the "
                "new one does not repeat them (sums in another order); send the request again"
            )
        num_sent = len(repeated_ids)
        logprobs = piece.logprobs[num_sent:] if piece.logprobs is not None else None
        return replace(piece, token_ids=piece.token_ids[num_sent:], logprobs=logprobs, scores=piece.scores[num_sent:])

    def _part(self, piece: Piece, reason: str | None = None, receipt: Receipt | None = None) -> Part:
        choice, text = self._choice, self._text.text[len(self._choice.given_text) :]
        choice.given_ids += piece.token_ids
        choice.given_text += text
        prompt: tuple[Step | None, ...] = ()
        prompt_scores: tuple[Scores | None, ...] = ()
        if not choice.given_prompt:
            prompt, prompt_scores = piece.prompt_logprobs or (), piece.prompt_scores
            choice.given_prompt = bool(prompt or prompt_scores)
        prompt_ids = choice.prompt_ids if prompt else ()
        return Part(
            choice.index, text, piece.token_ids, piece.logprobs or (), reason, receipt, prompt_ids, prompt,
            piece.scores, prompt_scores,
        )  # fmt: skip


def plan_choices(body: CompletionBody, prompts: Sequence[tuple[int, ...]], seed: int) -> list[Choice]:
    """Return choices in the API's order, n of each prompt; the k-th of a prompt has seed + k, modulo 2^63."""
    return [
        Choice(index * body.n + number, prompt, (seed + number) % (MAX_SEED + 1))
        for index, prompt in enumerate(prompts)
        for number in range(body.n)
    ]


def check_vocabulary(choices: Sequence[Choice], size: int) -> None:
    """Raise InputError for token ids that the model does not have."""
    for choice in choices:
        largest = max(choice.prompt_ids, default=0)
        if largest >= size:
            raise InputError(
                f"token id {largest} of choice {choice.index} is out of range: the model has 0..{size - 1}"
            )


def check_logprobs(body: CompletionBody, prompts: Sequence[tuple[int, ...]]) -> None:
    """Raise TooLargeError when an answer would hold more log-probabilities than the service keeps for a request."""
    if body.logprobs is None:
        return
    num_tokens = len(prompts) * body.max_tokens + (sum(map(len, prompts)) if body.echo else 0)
    num_values = num_tokens * body.n * (body.logprobs + 1)
    if num_values > MAX_LOGPROB_VALUES:
        raise TooLargeError(
            f"the answer would hold {num_values} log-probabilities (tokens x (logprobs + 1)), at most "
            f"{MAX_LOGPROB_VALUES} are computed for one request; send fewer prompts at a time, or lower logprobs"
        )
