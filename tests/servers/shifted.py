"""`python -m tests.servers.shifted SECONDS`: `consumer.py` with a clock that is wrong by so many seconds.

Debian's libfaketime cannot run Python 3.11, whose sleep it answers with an error. So the clock of the queue's modules
is replaced: Celery's, kombu's and ours.
"""

import datetime
import sys
import time
from typing import Any

from tests.servers import consumer

_PACKAGES = ("celery", "kombu", "poolbench")
_time, _datetime = time.time, datetime.datetime


class _AnyDatetime(type(_datetime)):  # type: ignore[misc]
    """Every datetime is an instance."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)


def shift(seconds: float) -> None:
    """Move the clock of the queue's modules."""

    class Shifted(_datetime, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return _datetime.now(tz) + datetime.timedelta(seconds=seconds)

    def shifted() -> float:
        return _time() + seconds

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PACKAGES:
            continue
        for attribute, value in list(vars(module).items()):
            if value is _time:
                setattr(module, attribute, shifted)
            elif value is _datetime:
                setattr(module, attribute, Shifted)
    time.time = shifted


if __name__ == "__main__":
    import kombu.asynchronous.timer  # noqa: F401

    shift(float(sys.argv[1]))
    consumer.main()
