"""What others made and a run reads: activations, scorers and sparse autoencoders, brought into the object store."""

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
