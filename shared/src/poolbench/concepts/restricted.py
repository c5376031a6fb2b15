"""The one rule for sensitive concepts.

Keys of their artifacts begin with `restricted.`. Before passages, vectors, directions, texts or scorers are exported,
shown on a page or answered over HTTP, `refuse_restricted` is called with their keys; of passages that have no key yet,
`refuse_sensitive` with their concepts. POOLBENCH_SENSITIVE lifts the rule. Scores and figures are public.
"""

from collections.abc import Iterable

from poolbench.concepts.concept import CONCEPTS
from poolbench.contracts.keys import is_restricted
from poolbench.errors import RestrictedError
from poolbench.settings import PlaceSettings


def stay(keys: Iterable[str]) -> bool:
    """Return whether one of these artifacts is restricted, and the operator does not allow them to leave."""
    return any(map(is_restricted, keys)) and not PlaceSettings.load().sensitive


def refuse_restricted(what: str, keys: Iterable[str]) -> None:
    """Raise RestrictedError if one of these artifacts must stay; `what` names in the message what would leave."""
    if stay(keys):
        raise _refusal(what)


def refuse_sensitive(concepts: Iterable[str]) -> None:
    """Raise RestrictedError if one of these concepts is sensitive, UnknownConceptError if one is unknown."""
    if names := withheld(concepts):
        raise _refusal(", ".join(names))


def withheld(concepts: Iterable[str]) -> list[str]:
    """Return the sensitive ones of these concepts; none if the operator allows them."""
    sensitive = [name for name in dict.fromkeys(concepts) if CONCEPTS.get(name).sensitive]
    return [] if PlaceSettings.load().sensitive else sensitive


def _refusal(what: str) -> RestrictedError:
    return RestrictedError(
        f"{what}: passages, vectors, texts and scorers of sensitive concepts stay in the store; leave it out, or allow "
        f"it with {PlaceSettings.variable('sensitive')}=true"
    )
