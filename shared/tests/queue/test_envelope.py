"""What is understood of a message: ours alone, whatever the bytes are."""

import json

import pytest
from tests.poison import POISON, QUEUE, echo

from poolbench.queue.envelope import KEPT_BYTES, Message, Misunderstood, understand


@pytest.mark.parametrize("name", POISON)
def test_poison_is_not_understood_and_its_start_is_kept(name: str) -> None:
    raw, reason = POISON[name]
    found = understand(raw)
    assert isinstance(found, Misunderstood) and reason in found.reason
    assert len(found.reason) < 700 and found.reason.isprintable()
    assert (found.raw, found.num_bytes) == (raw[:KEPT_BYTES], len(raw))


def test_what_celery_adds_by_itself_is_understood_and_not_passed_on() -> None:
    envelope = Message(echo(3).model_dump(mode="json")).envelope(QUEUE)
    envelope["headers"] |= {"stamps": {}, "shadow": "x", "argsrepr": "()", "eta": "9999-12-31T23:59:59+00:00"}
    envelope["properties"] |= {"reply_to": "somewhere", "delivery_tag": "mine"}
    envelope["properties"]["delivery_info"] = {"exchange": "celery.pidbox", "routing_key": "elsewhere"}
    found = understand(json.dumps(envelope).encode())
    assert not isinstance(found, Misunderstood)
    passed = json.dumps(found.envelope(QUEUE))
    assert not any(word in passed for word in ("shadow", "somewhere", "mine", "pidbox", "elsewhere", "9999-12"))
