"""Runs: what lies of each in its folder and in the object store, how it is found, and how a run in work writes it."""

from poolbench_driver.records.finding import Runs, find_run, find_runs, local_runs, open_runs, run_at, without_copies
from poolbench_driver.records.folder import (
    create_run,
    now,
    write_failures,
    write_manifest,
    write_model,
    write_state,
    write_table,
)
from poolbench_driver.records.progress import FirstFigures, Progress
from poolbench_driver.records.record import RunRecords
from poolbench_driver.records.run import NOTES, UNFINISHED, Run, is_published, manifest_files, recall_concepts, run_id
from poolbench_driver.records.writer import Rhythm, RunWriter
