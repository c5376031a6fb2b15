"""What a user says about a concept, in a YAML file or in flags; and the request that sends it to a service."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from poolbench.config import ConceptSettings, read_yaml
from poolbench.errors import ConfigError, shown
from poolbench_corpora.own.build import TextFiles
from poolbench_corpora.own.files import COLUMNS
from poolbench_corpora.reading import ending, read_document, records, stem_of

#: Settings that name files.
FILES = ("positives", "negatives", "pairs")
_MAX_ISSUES = 20


class Definition(ConceptSettings):
    """The settings of one concept, with its files.

    Attributes:
        positives: File of positives, relative to the YAML file; so `negatives` and `pairs`.
    """

    positives: str = ""
    negatives: str = ""
    pairs: str = ""

    def files(self) -> TextFiles:
        """Return the files that are named."""
        return TextFiles(**{name: Path(file) for name in FILES if (file := getattr(self, name))})


def read_definition(path: Path) -> Definition:
    """Return the definition in a YAML file, its files as paths from here. Raise ConfigError with each wrong field."""
    values = read_yaml(path, "concept file")
    definition = checked(values, f"concept file {path}")
    files = {name: str(path.parent / getattr(definition, name)) for name in FILES if getattr(definition, name)}
    return definition.model_copy(update=files)


def checked(values: dict[str, object], origin: str) -> Definition:
    """Return the definition with these values. Raise ConfigError with the origin and each wrong field."""
    try:
        return Definition.model_validate(values)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(map(str, issue['loc'])) or 'settings'}: {issue['msg']}, got {shown(issue['input'])}"
            for issue in error.errors()[:_MAX_ISSUES]
        ]
        raise ConfigError(f"{origin}: {'; '.join(wrong)}") from None


def template(name: str) -> str:
    """Return a YAML file to fill in."""
    return f"""\
# A concept of your own. `poolbench-driver concept check {name}.yaml` says what is missing,
# `poolbench-driver concept add {name}.yaml` registers it, `poolbench-driver run --concepts {name}` measures it.
id: {name}

# What makes a passage positive, in one sentence.
definition: ""

# Files of texts: JSONL with one {{"text": "..."}} per line, CSV with a column `text`, or .txt with one text per line.
# Optional columns: `doc_id` (the document that the text is from: texts of one document are never both in training and
# test), `domain`, `source`, `licence`, `id`. Passages of 20 to 500 words work; give 20 per class or more, better 200.
positives: positives.jsonl
negatives: negatives.jsonl

# Instead of the two files, or beside them: matched pairs, with columns `positive` and `negative`.
# pairs: pairs.jsonl

# For D3: concepts to compare with, the linguistically distant one first.
neighbours: []

# Words that no negative should contain; `concept check` counts them.
seed_words: []

# Whether passages, vectors and texts are restricted.
sensitive: false

# Licence of the texts that name none.
licence: ""
"""


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
