"""What may be published of a run's concepts: activations, directions, scorers and steered texts.

Each is a folder with a card, a manifest and checksums, which is written completely or not at all.
"""

from poolbench_driver.suites.poolbench.release.activations import export_activations
from poolbench_driver.suites.poolbench.release.directions import export_directions
from poolbench_driver.suites.poolbench.release.scorers import export_scorers
from poolbench_driver.suites.poolbench.release.source import Export, licence_of, releasable_concepts
from poolbench_driver.suites.poolbench.release.steered import export_steered_outputs

__all__ = [
    "Export",
    "export_activations",
    "export_directions",
    "export_scorers",
    "export_steered_outputs",
    "licence_of",
    "releasable_concepts",
]
