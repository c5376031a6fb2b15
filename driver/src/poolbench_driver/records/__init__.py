"""Runs: the folder of each, its record in the object store, by which other machines know it, and both as one list."""

from poolbench_driver.records.folder import RunFolder, list_runs, now, run_id, without_copies
from poolbench_driver.records.progress import FirstFigures, Progress
from poolbench_driver.records.record import Run, RunRecords, Runs
from poolbench_driver.records.writer import Rhythm, RunWriter, fetch_run, find_run, find_runs, is_published
