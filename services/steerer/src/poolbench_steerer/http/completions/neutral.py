"""Options of the OpenAI API and of vLLM's that are not offered: accepted with the values that change nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from poolbench_steerer.http.values import shortened


class Only:
    """Marks an option that is taken with these values alone, or null."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [*self.values, None]}

    def _check(self, value: Any) -> Any:
        # Python's True equals 1: a bool is neutral only where the option is one.
        if value is None or any(
            value == known and isinstance(value, bool) == isinstance(known, bool) for known in self.values
        ):
            return value
        allowed = " or ".join(map(repr, self.values)) or "null"
        raise ValueError(f"{shortened(value)} is not supported here; leave the option out or send {allowed}")


class NeutralOptions(BaseModel):
    """Options that clients send as they are; none of them changes a text."""

    frequency_penalty: Annotated[Any, Only(0)] = 0
    presence_penalty: Annotated[Any, Only(0)] = 0
    logit_bias: Annotated[Any, Only({})] = {}
    suffix: Annotated[Any, Only("")] = ""
    repetition_penalty: Annotated[Any, Only(1)] = 1
    length_penalty: Annotated[Any, Only(1)] = 1
    top_k: Annotated[Any, Only(-1, 0)] = 0
    min_p: Annotated[Any, Only(0)] = 0
    min_tokens: Annotated[Any, Only(0)] = 0
    use_beam_search: Annotated[Any, Only(False)] = False
    stop_token_ids: Annotated[Any, Only([])] = []
    bad_words: Annotated[Any, Only([])] = []
    include_stop_str_in_output: Annotated[Any, Only(False)] = False
    skip_special_tokens: Annotated[Any, Only(True)] = True
    spaces_between_special_tokens: Annotated[Any, Only(True)] = True
    add_special_tokens: Annotated[Any, Only(True)] = True
    return_tokens_as_token_ids: Annotated[Any, Only(False)] = False
    return_token_ids: Annotated[Any, Only(False)] = False
    response_format: Annotated[Any, Only({"type": "text"})] = {"type": "text"}
    priority: Annotated[Any, Only(0)] = 0
    allowed_token_ids: Annotated[Any, Only()] = None
    prompt_logprobs: Annotated[Any, Only()] = None
    truncate_prompt_tokens: Annotated[Any, Only()] = None
    guided_json: Annotated[Any, Only()] = None
    structured_outputs: Annotated[Any, Only()] = None
    kv_transfer_params: Annotated[Any, Only()] = None
    request_id: Annotated[Any, Only()] = None
