"""An object store that counts what is asked of it."""

from collections import Counter
from typing import Any


class Counted:
    """A store that counts requests by method."""

    def __init__(self, store: Any) -> None:
        self._store, self.requests = store, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*args: Any, **options: Any) -> Any:
            self.requests[name] += 1
            return found(*args, **options)

        return counted
