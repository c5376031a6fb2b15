"""Runs: what lies of each in its folder and in the object store, how it is found, and how a run in work writes it.

Finding and reading runs is imported from here. `folder`, `progress`, `record` and `writer` write runs, and read what
the object store has of them; they import much more.
"""

from poolbench_driver.records.finding import Runs, find_run, find_runs, local_runs, open_runs, run_at, without_copies
from poolbench_driver.records.run import NOTES, UNFINISHED, Run, is_published, manifest_files, recall_concepts, run_id
