"""Before vLLM's routes: the self-test at start, and each request and its response."""

import asyncio
import logging
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poolbench.contracts.wire import JSON_TYPE
from poolbench.errors import PoolbenchError
from poolbench_steerer.engine.selftest import self_test
from poolbench_steerer.server.exchange import Exchange
from poolbench_steerer.server.facts import Call
from poolbench_steerer.server.files import read_vectors
from poolbench_steerer.server.texts import CALL, ServedTexts
from poolbench_steerer.server.vectors import FileVectors, add_vectors, list_steered

logger = logging.getLogger("vllm.steering")  # below the one logger that vLLM shows


class SteeringMiddleware:
    """The middleware that `--steering` puts before vLLM's app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._served: FileVectors | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the fields about steering taken from it."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
        else:
            await self._exchange(scope, receive, send)

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._served is not None
        headers = dict(scope["headers"])
        of_json = headers.get(b"content-type", JSON_TYPE.encode()).lower().startswith(JSON_TYPE.encode())
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        call = Call()
        exchange = Exchange(self._served, path, call)
        before = CALL.set(call)
        try:
            await self._app(
                scope,
                (lambda: exchange.receive(receive)) if of_json else receive,
                lambda message: exchange.send(message, send),
            )
        finally:
            CALL.reset(before)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Start steering before the server accepts a request; end the process if that is not possible."""
        message = await receive()
        try:
            self._served = await started(scope["app"].state)
            add_vectors(scope["app"], self._served)
        except (PoolbenchError, RuntimeError) as error:
            await send({"type": "lifespan.startup.failed", "message": f"steering: {error}"})
            asyncio.get_running_loop().call_soon(_exit)  # not every release of vLLM's server ends with an exit code
            return
        first: list[Message] = [message]

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replayed, send)


async def started(state: Any) -> FileVectors:
    """Self-test the engine of vLLM's server, register its vectors, and let requests steer with them.

    Raises:
        ReceiptError: The self-test failed.
        InputError, VectorError: A vector cannot be read, or does not fit the model.
    """
    vectors = await asyncio.to_thread(read_vectors, state.args.steering)
    served = await FileVectors.around(state.engine_client, state.args.served_model_name or [state.args.model])
    checks = await self_test(served.engine)
    await served.register(list(vectors.values()))
    ServedTexts(served.engine, served.vectors)
    list_steered(state.openai_serving_models, served)
    logger.info("steering is ready: %d vectors, self-test %s", len(vectors), checks)
    return served


def _exit() -> None:
    raise SystemExit(1)
