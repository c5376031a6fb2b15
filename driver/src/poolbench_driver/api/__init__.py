"""What Python code calls: a cluster, its runs, and requests to one service. The commands call the same.

| module | what |
|---|---|
| `cluster` | `connect`; a cluster and its verbs, each with an asynchronous twin |
| `driving` | `run`, and runs that a thread drives |
| `loading` | `load`, `ranks`; a run as Python reads it, and two beside each other |
| `answers`, `steered` | what services answer |
| `shown` | tables and pictures as notebooks draw them |
"""
