"""External inputs of a run in the object store: activations, scorers and sparse autoencoders."""

from poolbench_driver.imports.record import (
    ActivationImport,
    StatesEntry,
    imported_keys,
    imported_model,
    is_imported,
    list_imports,
    load_import,
)

__all__ = [
    "ActivationImport",
    "StatesEntry",
    "imported_keys",
    "imported_model",
    "is_imported",
    "list_imports",
    "load_import",
]
