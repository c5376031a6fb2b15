"""The hostile trial itself: every number gives the same case, and its judges see what they are to see."""

import asyncio
import random
from typing import Any

import pytest
from tests.trials.hostile import wire
from tests.trials.hostile.bodies import VERBS
from tests.trials.hostile.case import Case, Outcome, judge
from tests.trials.hostile.control import whole
from tests.trials.hostile.generate import Generator, catalogue
from tests.trials.hostile.send import Sender

TOKEN = "0" * 64


def test_a_number_gives_the_same_request_whatever_else_is_sent() -> None:
    one, other = (Generator(7, TOKEN, {}) for _ in range(2))
    assert [one.case(number) for number in (1500, 3, 1999)] == [other.case(number) for number in (1500, 3, 1999)]
    assert Generator(8, TOKEN, {}).case(1500) != one.case(1500)
    assert one.rng(5).random() == other.rng(5).random()


def test_the_first_2000_requests_have_every_class_every_verb_and_every_abuse() -> None:
    generator = Generator(1, TOKEN, {})
    cases = [generator.case(number) for number in range(2000)]
    assert [case.number for case in cases] == list(range(2000))
    assert len(catalogue(TOKEN)) < 250  # CI sends so many, and should draw some
    assert {case.wire for case in cases} == {"", *wire.ABUSES}
    assert set(VERBS) <= {case.path for case in cases if case.kind == "spoiled"}


@pytest.mark.parametrize(
    ("status", "body", "refused", "finding"),
    [
        (422, b'{"error": {}}', True, ""),
        (200, b'{"text": "NaN", "x": 1}', False, ""),
        (503, b"{}", False, "answered 503"),
        (400, b"Traceback (most recent call last)", True, "traceback"),
        (200, b'{"x": [NaN]}', False, "NaN or Infinity"),
    ],
)
def test_answers_are_judged(status: int, body: bytes, refused: bool, finding: str) -> None:
    case = Case(0, "x", "POST", "/prober/probe", refused=refused)
    found = judge(case, status, body)
    assert finding in found
    assert bool(found) == bool(finding)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that falls over one path, hangs up on another, and lets everybody in."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"/hangs-up" not in head:
        status = b"500 x" if b"/falls-over" in head else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    writer.close()


async def _outcomes(cases: list[Case]) -> list[Outcome]:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Sender(address) as sender:
        return await asyncio.gather(*(sender.send(case, random.Random(case.number)) for case in cases))


def test_a_sender_sees_what_an_answer_breaks() -> None:
    token = (("authorization", "Bearer x"),)
    cases = [
        Case(1, "x", "GET", "/falls-over", token),
        Case(2, "x", "GET", "/hangs-up", token),
        Case(3, "x", "POST", "/fine", token, b"{}"),
        Case(4, "x", "POST", "/fine", (), b"{}", refused=True),
        Case(5, "wire", "POST", "/fine", (), b"{}", wire="pipelines"),
        Case(6, "wire", "POST", "/falls-over", token, b"{}", wire="half_closes"),
        Case(7, "wire", "POST", "/fine", token, b"{}", wire="leaves"),
    ]
    found = [(each.status, each.defect.partition(":")[0]) for each in asyncio.run(_outcomes(cases))]
    assert found == [
        (500, "answered 500"),
        (0, "no answer"),
        (200, ""),
        (200, "accepted with 200"),
        (200, "accepted without a token"),
        (500, "answered 500"),
        (0, ""),
    ]


def test_a_stream_is_compared_whatever_its_cuts() -> None:
    def event(text: str, end: str | None = None) -> dict[str, Any]:
        return {"model": "demo", "choices": [{"index": 0, "text": text, "finish_reason": end}]}

    parts = whole([event(" required"), event(" information", "length")])
    assert parts == whole([event(" required information", "length")])
    assert parts != whole([event(" required"), event(" information", "stop")])
    assert parts != whole([event(" information"), event(" required", "length")])
    assert whole([event("a"), {"error": {"code": "engine_died"}}]) != whole([event("a")])
