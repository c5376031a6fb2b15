"""The project's own concepts, one YAML file each. Importing this module registers them."""

from importlib.resources import files

from poolbench.concepts.concept import CONCEPTS, parse_concept

_DEFINITIONS = files("poolbench.concepts").joinpath("definitions")

for _file in sorted(_DEFINITIONS.iterdir(), key=lambda entry: entry.name):
    if _file.name.endswith(".yaml"):
        CONCEPTS.add(parse_concept(_file.read_text("utf-8"), _file.name), __name__)
