"""The Python interface: a cluster, its runs, and requests to one service. The commands are built on it.

| module | content |
|---|---|
| `cluster` | `connect`, and `Cluster` with its methods, which `AsyncCluster` has for `await` |
| `driving` | `run`, and `RunHandle` for a run that a background thread drives |
| `loading` | `load`, `ranks`, `leaderboard`, and the classes of a run and of a comparison of two runs |
| `listing` | `ls`: registered, stored and imported objects |
| `answers`, `steering` | the answers of the services |
| `notebook` | tables and pictures that notebooks draw |
"""
