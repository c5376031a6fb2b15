"""The HTTP gate of the cluster: every request is checked before it reaches a service.

It runs inside Ray Serve's HTTP proxy, as an ASGI middleware (`gate`) and as the protocol of its server (`protocol`).
The protocol bounds what comes before a request exists: connections, headers, bytes that belong to no request, unread
responses. The middleware checks the token before it reads a body, reads the body itself, and answers `/health` without
waiting for a busy service.
"""

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Variable that Ray Serve's proxy reads at its start, on every node that has a proxy."""

CALLBACK = "poolbench.http.gate.serve.middlewares"
"""Its value, with which the proxy gets the gate."""
