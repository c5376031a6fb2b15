"""The cluster: one connection to store, queue and leases, and HTTP to the services."""

import sys

# httpx goes without its command line, which would import click and Pygments: .3 s of each of our commands.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
