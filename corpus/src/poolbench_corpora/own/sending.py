"""The request that registers or checks a concept over HTTP: its settings, and its files as they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poolbench.errors import CorpusError
from poolbench_corpora.own.definition import FILES, Definition
from poolbench_corpora.own.files import records

#: Files that are sent as they are. The lines of others are written as JSON.
_AS_THEY_ARE = (".jsonl", ".ndjson", ".csv")


def request_of(definition: Definition) -> dict[str, Any]:
    """Return the body of `POST /pooler/concepts`. Raise CorpusError for a file that is not text."""
    files = {name: Path(file) for name in FILES if (file := getattr(definition, name))}
    return definition.model_dump(mode="json", exclude=set(FILES)) | {name: _sent(file) for name, file in files.items()}


def _sent(file: Path) -> dict[str, str]:
    if file.suffix.lower() not in _AS_THEY_ARE:
        lines = (json.dumps(values, default=str, ensure_ascii=False) for _, values in records(file))
        return {"name": f"{file.stem}.jsonl", "content": "".join(f"{line}\n" for line in lines)}
    try:
        return {"name": file.name, "content": file.read_text("utf-8")}
    except UnicodeDecodeError:
        raise CorpusError(f"{file} is not UTF-8 text") from None
