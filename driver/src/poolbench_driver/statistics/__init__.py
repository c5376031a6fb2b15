"""Statistics of boards and comparisons: ranks, tests, their power, winning rates, and sizes of training sets."""
