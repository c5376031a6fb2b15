"""What is understood of a message: ours alone, whatever the bytes are."""

import json

import pytest
from tests.poison import POISON, echo

from poolbench.queue.messages import KEPT_BYTES, Message, Misunderstood, understand


@pytest.mark.parametrize("name", POISON)
def test_poison_is_not_understood_and_its_start_is_kept(name: str) -> None:
    raw, reason = POISON[name]
    found = understand(raw)
    assert isinstance(found, Misunderstood) and reason in found.reason
    assert len(found.reason) < 700 and found.reason.isprintable()
    assert (found.raw, found.num_bytes) == (raw[:KEPT_BYTES], len(raw))


def test_further_fields_are_understood_and_not_kept() -> None:
    raw = json.dumps(json.loads(Message(task=echo(3).model_dump(mode="json")).encode()) | {"reply_to": "elsewhere"})
    found = understand(raw.encode())
    assert isinstance(found, Message) and b"elsewhere" not in found.encode()
    assert understand(found.encode()) == found
