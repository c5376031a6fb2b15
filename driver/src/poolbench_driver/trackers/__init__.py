"""Tools that follow experiments, such as MLflow: what they get of a run, and how they are found."""

from poolbench_driver.trackers.feed import Feed
from poolbench_driver.trackers.tracker import TRACKERS, Tracker, TrackerKind
