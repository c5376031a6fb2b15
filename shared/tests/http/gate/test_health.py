"""The health of services, as the gate answers for them: from memory, and by one question at a time."""

import json
from collections.abc import Iterator

import pytest
from tests.servers.door import TOKEN, Door, request, serving
from tests.waiting import wait_until


@pytest.fixture
def unasked_door() -> Iterator[Door]:
    with serving() as found:
        yield found


def test_health_gives_details_to_the_token_only_and_reads_no_body(unasked_door: Door) -> None:
    unasked_door.ask(request("/prober/health", body=b"x" * 1000, token=TOKEN))
    assert [each["bytes"] for each in unasked_door.behind.seen] == [0]
    wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)
    assert json.loads(unasked_door.ask(request("/prober/health")).body) == {"status": "ok"}
    assert json.loads(unasked_door.ask(request("/prober/health", token=TOKEN)).body) == {"status": "ok", "bytes": 0}


def test_health_of_a_busy_service_is_what_it_last_said(unasked_door: Door) -> None:
    """The answer comes while the service is still held."""
    wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)
    unasked_door.behind.held.set()
    reply = unasked_door.ask(request("/prober/health", token=TOKEN))
    assert (reply.status, json.loads(reply.body)["status"]) == (200, "ok")
    assert unasked_door.behind.held.is_set() and "released" not in unasked_door.behind.ended


def test_a_service_that_is_silent_for_long_is_down_until_it_answers() -> None:
    with serving(health_silence_s=0.5) as unasked_door:
        wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)
        unasked_door.behind.held.set()
        wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 503)
        unasked_door.behind.held.clear()
        wait_until(lambda: unasked_door.ask(request("/prober/health")).status == 200)


def test_a_service_never_heard_of_is_silent_and_many_questions_are_one(unasked_door: Door) -> None:
    unasked_door.behind.held.set()
    reply = unasked_door.ask(request("/prober/health"))
    assert (reply.status, json.loads(reply.body)) == (503, {"status": "silent"})
    # However many ask, one question at a time reaches the service.
    unasked_door.behind.held.set()
    for _ in range(5):
        unasked_door.ask(request("/prober/health"))
    assert len(unasked_door.behind.seen) == 1


def test_a_service_that_is_asleep_is_not_asked(unasked_door: Door) -> None:
    """A question would start a replica."""
    unasked_door.behind.asleep.add("scorer")
    reply = unasked_door.ask(request("/scorer/health"))
    assert (reply.status, json.loads(reply.body)) == (200, {"status": "asleep"})
    assert unasked_door.behind.seen == []
    unasked_door.behind.asleep.clear()
    wait_until(lambda: json.loads(unasked_door.ask(request("/scorer/health")).body) == {"status": "ok"})


def test_a_question_that_meets_the_end_of_the_last_replica_is_withdrawn(unasked_door: Door) -> None:
    """It would wait for the next replica, and so start it."""
    unasked_door.behind.held.set()
    assert unasked_door.ask(request("/scorer/health")).status == 503
    assert len(unasked_door.behind.seen) == 1
    unasked_door.behind.asleep.add("scorer")
    wait_until(lambda: json.loads(unasked_door.ask(request("/scorer/health")).body) == {"status": "asleep"})
    wait_until(lambda: unasked_door.behind.ended == ["cancelled"])
    assert len(unasked_door.behind.seen) == 1
