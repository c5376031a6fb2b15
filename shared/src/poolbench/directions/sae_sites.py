"""Sites of a model that sparse autoencoders read: only the residual stream between blocks is known here."""

import re
from collections.abc import Mapping
from typing import Any

from poolbench.errors import InputError, shown

#: The residual stream before a block is the one after the block before it; -1 is the embedding.
_RESIDUAL = re.compile(r"blocks\.(\d+)\.hook_resid_(pre|post)")
#: A whole block, as Hugging Face names it: its output is the residual stream after it.
_BLOCK = re.compile(r"(?:\w+\.)*(?:layers|h|blocks)\.(\d+)")


def residual_layer(site: object) -> int:
    """Return the layer whose output a site is, such as 7 for `blocks.7.hook_resid_post`.

    Raise InputError for a site that is not the residual stream, such as `blocks.7.hook_mlp_out`.
    """
    residual = _RESIDUAL.fullmatch(str(site))
    if residual is not None:
        return int(residual[1]) - (residual[2] == "pre")
    block = _BLOCK.fullmatch(str(site))
    if block is None:
        raise InputError(
            f"the autoencoder reads {shown(site)}; only the residual stream between blocks is read here, such as "
            "blocks.7.hook_resid_post"
        )
    return int(block[1])


def residual_site(layer: int) -> str:
    """Return the name of the residual stream after a layer."""
    return "blocks.0.hook_resid_pre" if layer == -1 else f"blocks.{layer}.hook_resid_post"


def layer_of(settings: Mapping[str, Any]) -> int | None:
    """Return the layer that a configuration names; None if it names none. Raise InputError for another site."""
    nested = settings.get("metadata")
    hooks = {**(nested if isinstance(nested, dict) else {}), **settings}
    site, layer, head = (_of_hook(hooks, part) for part in ("name", "layer", "head_index"))
    if head is not None:
        raise InputError(f"the autoencoder reads head {shown(head)} of {shown(site)}; {_WHOLE}")
    if hooks.get("hook_name_out") not in (None, site):
        raise InputError(f"the autoencoder reads {shown(site)} and writes {shown(hooks['hook_name_out'])}; {_WHOLE}")
    if site is not None:
        return residual_layer(site)
    if layer is not None and (isinstance(layer, bool) or not isinstance(layer, int)):
        raise InputError(f"hook_layer of the autoencoder is {shown(layer)}; a whole number is needed")
    return layer


def _of_hook(settings: Mapping[str, Any], part: str) -> Any:
    """Return a setting of the site; older configurations say `hook_point`, `hook_point_layer` and so on."""
    older = "hook_point" if part == "name" else f"hook_point_{part}"
    setting = settings.get(f"hook_{part}")
    return settings.get(older) if setting is None else setting


_WHOLE = "it must read and write the whole residual stream at one place"
