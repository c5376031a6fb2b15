"""`python -m deploy.docker.answers agent|URL`: exit 0 if an address of this container answers; a health check.

Only the standard library: it runs every few seconds in every container.
"""

import sys
import urllib.request

#: Ray's agent of this node answers here once the node has joined the cluster.
AGENT = "http://127.0.0.1:52365/api/healthz"
_TIMEOUT_S = 5

if __name__ == "__main__":
    address = AGENT if sys.argv[1] == "agent" else sys.argv[1]
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as response:
            sys.exit(response.status != 200)
    except OSError as error:
        print(f"no answer from {address}: {error}")
        sys.exit(1)
