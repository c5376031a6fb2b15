"""What a suite adds to a run: the settings that it starts from."""

from typing import Any

from poolbench_driver.suites import planted

SETTINGS: dict[str, dict[str, Any]] = {"planted": planted.SETTINGS}
