"""The concept registry: complete, consistent, and helpful about wrong names."""

import subprocess
import sys
from pathlib import Path

import pytest

from poolbench.concepts import CONCEPTS, Concept, refuse_restricted, refuse_sensitive, withheld
from poolbench.concepts.concept import parse_concept
from poolbench.errors import ConfigError, RestrictedError, UnknownConceptError


@pytest.mark.parametrize("concept", CONCEPTS.all(), ids=lambda concept: concept.id)
def test_neighbours_exist_and_differ(concept: Concept) -> None:
    distant, close = concept.neighbours
    assert CONCEPTS.get(distant).id != CONCEPTS.get(close).id
    assert concept.id not in {distant, close}


def test_a_wrong_concept_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "irony.yaml"
    path.write_text("id: irony\nfamily: sparse\ncolour: red\n")
    with pytest.raises(ConfigError, match=r"irony\.yaml.*family.*colour"):
        parse_concept(path.read_text("utf-8"), str(path))
    with pytest.raises(ConfigError, match=r"bad\.yaml is not YAML"):
        parse_concept("id: [", "bad.yaml")


def test_listing_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'pyarrow', 'transformers', 'spacy', 'ray'}"
    code = "import sys; from poolbench.concepts import CONCEPTS; CONCEPTS.all(); "
    code += f"assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_leaves_is_refused_by_key_and_by_concept_unless_the_operator_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, keys = [concept.id for concept in CONCEPTS.all()], ["steerer.generate.1", "restricted.steerer.generate.1"]
    assert set(withheld(names)) == {"toxicity", "depression"}
    refuse_restricted("texts", keys[:1])
    refuse_sensitive(["contrast"])
    with pytest.raises(RestrictedError, match=r"texts: .*POOLBENCH_SENSITIVE=true"):
        refuse_restricted("texts", keys)
    with pytest.raises(RestrictedError, match=r"^toxicity: "):
        refuse_sensitive(["contrast", "toxicity"])
    with pytest.raises(UnknownConceptError, match="did you mean toxicity"):
        refuse_sensitive(["toxicty"])
    monkeypatch.setenv("POOLBENCH_SENSITIVE", "true")
    refuse_restricted("texts", keys)
    refuse_sensitive(names)
    assert withheld(names) == []
