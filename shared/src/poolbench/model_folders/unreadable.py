"""The error of a model or tokenizer that `from_pretrained` refused, in one line and with what helps."""

import os

from poolbench.config import ModelRef
from poolbench.errors import ModelError

_OFFLINE = "HF_HUB_OFFLINE"


def unreadable(what: str, ref: ModelRef, error: Exception, trust_setting: str) -> ModelError:
    """Return the error for a part of a model that cannot be read. The message calls the part `what`.

    Args:
        trust_setting: Variable by which the operator lets models run code of their own.
    """
    if "trust_remote_code" in str(error):  # Transformers raises a plain ValueError
        return ModelError(
            f"{what} brings code of its own, which runs only where the operator allows it ({trust_setting}=1)"
        )
    offline = not ref.is_local and os.environ.get(_OFFLINE, "0") not in ("", "0")
    if offline and ("cached" in str(error) or "offline" in str(error).lower()):
        return ModelError(
            f"{what} is not in the Hugging Face cache of the services, which run with {_OFFLINE}=1 and fetch nothing; "
            f"put it there, or start them with {_OFFLINE}=0 (`{_OFFLINE}=0 make cluster-up`)"
        )
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelError(f"{what} cannot be loaded: {first_line}")
