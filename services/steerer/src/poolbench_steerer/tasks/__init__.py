"""The queue tasks: `plan` determines the texts, `handlers` have them generated and write their `tables`."""

from poolbench_steerer.tasks.handlers import complete, continue_passages, generate, read_texts
