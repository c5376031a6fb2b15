"""The HTTP gate of the cluster: every request is checked before it reaches a service.

It runs inside Ray Serve's HTTP proxy, as an ASGI middleware (`gate`) on uvicorn's h11 protocol (`serve`). It checks the
token before it reads a body, reads the body itself and bounds its size, and answers `/health` without waiting for a
busy service. Rates, slow clients and floods are bounded by a proxy in front of it (`deploy/haproxy.cfg`).
"""

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Variable that Ray Serve's proxy reads at its start, on every node that has a proxy."""

CALLBACK = "poolbench.http.gate.serve.middlewares"
"""Its value, with which the proxy gets the gate."""
