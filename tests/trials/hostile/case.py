"""One hostile request, and what came of it."""

import json
from dataclasses import dataclass

#: Answers below 500 are refusals or work done. 503 is meant only where a part is down, and in a trial none is.
FIRST_DEFECT = 500


@dataclass(frozen=True)
class Case:
    """One hostile request.

    Attributes:
        number: Its place in the trial; with the seed it determines everything else.
        kind: Class of hostility.
        headers: Further headers; the token is among them or is not.
        wire: Name of what is done on a raw socket; empty for an ordinary HTTP client.
        refused: Whether it must be refused (4xx), because accepting it would be a hole.
    """

    number: int
    kind: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    wire: str = ""
    refused: bool = False

    @property
    def shown(self) -> str:
        """The request in one line."""
        body = self.body[:160].decode("utf-8", "replace") + ("..." if len(self.body) > 160 else "")
        return f"#{self.number} {self.kind}: {self.method} {self.path[:120]!r} {self.wire} {body}"


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        status: HTTP status; 0 where no answer was wanted or none came.
        intended: Whether the client itself meant to have no answer.
        started_s, ended_s: By the monotonic clock, which all processes of a machine share.
        defect: Why this outcome breaks a promise; empty if it does not.
    """

    case: Case
    status: int
    started_s: float
    ended_s: float
    intended: bool = False
    defect: str = ""


def judge(case: Case, status: int, body: bytes, *, intended: bool = False, note: str = "") -> str:
    """Why an answer breaks a promise; empty if it breaks none."""
    if status >= FIRST_DEFECT:
        return f"answered {status}: {body[:200].decode('utf-8', 'replace')}"
    if b"Traceback (most recent call last)" in body:
        return f"answered {status} with a traceback"
    if case.refused and 200 <= status < 400:
        return f"accepted with {status}: {body[:200].decode('utf-8', 'replace')}"
    if not status and not intended:
        return f"no answer: {note}"
    if status == 200 and _holds_no_number(body):
        return f"answered 200 with NaN or Infinity: {body[:200].decode('utf-8', 'replace')}"
    return ""


def _holds_no_number(body: bytes) -> bool:
    """Whether an answer has NaN or Infinity where JSON has none."""
    try:
        json.loads(body, parse_constant=_refuse_constant)
    except ArithmeticError:
        return True
    except (ValueError, RecursionError):
        return False  # a page, a stream of events, or Arrow
    return False


def _refuse_constant(name: str) -> None:
    raise ArithmeticError(name)
