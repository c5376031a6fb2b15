"""A page as JSON, for programs that read results: a versioned view, with its schema."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from poolbench_driver.contract.page import Page


def json_of(page: Page) -> str:
    """Return a page as JSON. Numbers stand beside their texts, and what is null has its reason."""
    return TypeAdapter(Page).dump_json(page, indent=1).decode()


def schema() -> dict[str, Any]:
    """Return the JSON schema of a page."""
    return TypeAdapter(Page).json_schema(mode="serialization")
