"""Queries and keys of attention layers, observed while the model runs its fast attention.

Transformers dispatches every attention layer through a registry of functions. Our function calls the model's own
function. For each watched layer, it also passes the queries and keys to a watcher, after rotary embedding and before
heads are repeated.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

_PREFIX = "poolbench_"
#: Implementations whose masks are understood here; flash attention hides causality and windows in its arguments.
_OBSERVABLE = ("eager", "sdpa")

Watcher = Callable[..., None]
_watchers: ContextVar[Mapping[nn.Module, Watcher] | None] = ContextVar("watchers", default=None)


def observe_attention(model: Any) -> bool:
    """Route the model's attention through a wrapper that reports queries and keys.

    Models with logit soft-capping use their eager attention, because the scaled-dot-product kernels do not cap.

    Returns:
        Whether the attention can be observed. False if the architecture does not dispatch its attention through
        Transformers' registry, or uses another implementation than `eager` and `sdpa`.
    """
    settings = model.config.get_text_config(decoder=True)
    base = str(settings._attn_implementation).removeprefix(_PREFIX)
    if getattr(settings, "attn_logit_softcapping", None):
        base = "eager"
    if base not in _OBSERVABLE:
        return False
    name = _PREFIX + base
    AttentionInterface.register(name, partial(_observed_attention, base))
    AttentionMaskInterface.register(name, AttentionMaskInterface()[base])
    try:
        model.set_attn_implementation(name)
    except (ValueError, AttributeError):
        return False
    return bool(settings._attn_implementation == name)


@contextmanager
def watching(watchers: Mapping[nn.Module, Watcher]) -> Iterator[None]:
    """Within a `with` block, pass the queries, keys and settings of each attention module to its watcher."""
    token = _watchers.set(watchers)
    try:
        yield
    finally:
        _watchers.reset(token)


def _observed_attention(
    base: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    watcher = (_watchers.get() or {}).get(module)
    if watcher is not None:
        watcher(query, key, mask=attention_mask, scaling=kwargs.get("scaling"), softcap=kwargs.get("softcap"))
    # Eager attention functions are beside the model's class.
    eager = base == "eager"
    attend = sys.modules[type(module).__module__].eager_attention_forward if eager else AttentionInterface()[base]
    return attend(module, query, key, value, attention_mask, **kwargs)
