"""The machine that a replica runs on: its memory, its GPUs and the folders that it shares."""
