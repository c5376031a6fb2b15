"""The request that registers or checks a concept over HTTP: its settings, and its files as they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from poolbench_corpora.own.definition import FILES, Definition
from poolbench_corpora.own.files import COLUMNS
from poolbench_corpora.reading import ending, read_document, records, stem_of

#: Files that are sent as they are, so that errors name their lines. The records of others are written as JSON.
_AS_THEY_ARE = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt")


def request_of(definition: Definition) -> dict[str, Any]:
    """Return the body of `POST /pooler/concepts`. Raise CorpusError for a file that cannot be read."""
    files = {name: Path(file) for name in FILES if (file := getattr(definition, name))}
    return definition.model_dump(mode="json", exclude=set(FILES)) | {name: _sent(file) for name, file in files.items()}


def _sent(file: Path) -> dict[str, str]:
    if (kind := ending(file.name).removesuffix(".gz")) in _AS_THEY_ARE:
        return {"name": f"{stem_of(file)}{kind}", "content": read_document(file)}
    rows = ({name: values[name] for name in COLUMNS if name in values} for _, values in records(file))
    lines = (json.dumps(row, default=str, ensure_ascii=False) for row in rows)
    return {"name": f"{stem_of(file)}.jsonl", "content": "".join(f"{line}\n" for line in lines)}
