"""What may be published of a run: activations, directions, scorers, steered texts, and the run itself.

Each is a folder with a card, a manifest and checksums, which is written completely or not at all.
"""

from poolbench_driver.release.activations import export_activations
from poolbench_driver.release.directions import export_directions
from poolbench_driver.release.run import export_run
from poolbench_driver.release.scorers import export_scorers
from poolbench_driver.release.source import Export, licence_of, releasable_concepts
from poolbench_driver.release.steered import export_steered_outputs

__all__ = [
    "Export",
    "export_activations",
    "export_directions",
    "export_run",
    "export_scorers",
    "export_steered_outputs",
    "licence_of",
    "releasable_concepts",
]
