"""Records of runs in the object store: other machines watch, cancel and list runs by them."""

from poolbench_driver.records.files import find_run, publish_files
from poolbench_driver.records.publisher import Publisher, Rhythm
from poolbench_driver.records.record import DIED_AFTER_S, RunRecord, RunRecords
from poolbench_driver.records.runs import Run, Runs

__all__ = ["DIED_AFTER_S", "Publisher", "Rhythm", "Run", "RunRecord", "RunRecords", "Runs", "find_run", "publish_files"]
