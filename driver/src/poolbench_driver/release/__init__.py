"""What may be published of a run of any suite: the run itself, and where a release comes from.

A release is a folder with a card, a manifest and checksums, which is written completely or not at all.
"""

from poolbench_driver.release.run import export_run

__all__ = ["export_run"]
