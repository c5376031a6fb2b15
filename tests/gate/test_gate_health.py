"""`/health` at the gate: of a service that answers, is busy, is silent, or is not there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.servers.door import TOKEN, Door, request, serving
from tests.waiting import wait_until


@pytest.fixture
def door() -> Iterator[Door]:
    with serving() as found:
        yield found


def test_health_gives_details_to_the_token_only(door: Door) -> None:
    wait_until(lambda: door.ask(request("/prober/health")).status == 200)
    assert json.loads(door.ask(request("/prober/health")).body) == {"status": "ok"}
    assert json.loads(door.ask(request("/prober/health", token=TOKEN)).body) == {"status": "ok", "bytes": 0}


def test_a_body_sent_to_health_goes_nowhere(door: Door) -> None:
    door.ask(request("/prober/health", body=b"x" * 1000, token=TOKEN))
    assert [each["bytes"] for each in door.behind.seen] == [0]


def test_health_of_a_busy_service_is_what_it_last_said(door: Door) -> None:
    """The answer comes while the service is still held."""
    wait_until(lambda: door.ask(request("/prober/health")).status == 200)
    door.behind.held.set()
    reply = door.ask(request("/prober/health", token=TOKEN))
    assert (reply.status, json.loads(reply.body)["status"]) == (200, "ok")
    assert door.behind.held.is_set() and "released" not in door.behind.ended


def test_a_service_that_is_silent_for_long_is_down_until_it_answers() -> None:
    with serving(health_silence_s=0.5) as door:
        wait_until(lambda: door.ask(request("/prober/health")).status == 200)
        door.behind.held.set()
        wait_until(lambda: door.ask(request("/prober/health")).status == 503)
        door.behind.held.clear()
        wait_until(lambda: door.ask(request("/prober/health")).status == 200)


def test_many_questions_are_one(door: Door) -> None:
    """However many ask, one question at a time reaches the service."""
    door.behind.held.set()
    for _ in range(5):
        door.ask(request("/prober/health"))
    assert len(door.behind.seen) == 1


def test_health_of_a_service_never_heard_of_is_silent(door: Door) -> None:
    door.behind.held.set()
    reply = door.ask(request("/prober/health"))
    assert (reply.status, json.loads(reply.body)) == (503, {"status": "silent"})


def test_a_service_that_is_asleep_is_not_asked(door: Door) -> None:
    """A question would start a replica."""
    door.behind.asleep.add("scorer")
    reply = door.ask(request("/scorer/health"))
    assert (reply.status, json.loads(reply.body)) == (200, {"status": "asleep"})
    assert door.behind.seen == []
    door.behind.asleep.clear()
    wait_until(lambda: json.loads(door.ask(request("/scorer/health")).body) == {"status": "ok"})


def test_a_question_that_meets_the_end_of_the_last_replica_is_withdrawn(door: Door) -> None:
    """It would wait for the next replica, and so start it."""
    door.behind.held.set()
    assert door.ask(request("/scorer/health")).status == 503
    assert len(door.behind.seen) == 1
    door.behind.asleep.add("scorer")
    wait_until(lambda: json.loads(door.ask(request("/scorer/health")).body) == {"status": "asleep"})
    wait_until(lambda: door.behind.ended == ["cancelled"])
    assert len(door.behind.seen) == 1
