"""A server of credentials: the metadata service of a machine, that of a container, and STS for a web identity."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.servers.background import answering
from tests.servers.quiet import Quiet

ROLE, SESSION, IDENTITY = "the-role", "session-of-the-machine", "token-of-the-pod"
_ROLES = "/latest/meta-data/iam/security-credentials/"


class Metadata:
    """Hands out `keys` one pair after the other, the last one for ever, each valid for `lifetime_s`."""

    def __init__(self, *keys: tuple[str, str], lifetime_s: float = 3600.0) -> None:
        self.keys, self.lifetime_s = list(keys), lifetime_s
        self.down = False
        self.num_given = 0
        self._server = answering(_Handler, self)
        self.address = self._server.address

    def stop(self) -> None:
        self._server.stop()

    def give(self) -> tuple[str, str, str]:
        """Return access key, secret key and expiration."""
        self.num_given += 1
        access_key, secret_key = self.keys.pop(0) if len(self.keys) > 1 else self.keys[0]
        ends = datetime.now(UTC) + timedelta(seconds=self.lifetime_s)
        return access_key, secret_key, ends.strftime("%Y-%m-%dT%H:%M:%SZ")


class _Handler(Quiet, BaseHTTPRequestHandler):
    owner: Metadata

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        authorised = self.headers.get("X-aws-ec2-metadata-token") == SESSION
        if self.owner.down:
            self._send(403, "the source is down")
        elif (self.command, parts.path) == ("PUT", "/latest/api/token"):
            self._send(200, SESSION)
        elif parts.path == _ROLES and authorised:
            self._send(200, ROLE)
        elif (parts.path == _ROLES + ROLE and authorised) or parts.path == "/container":
            access_key, secret_key, ends = self.owner.give()
            body = {"AccessKeyId": access_key, "SecretAccessKey": secret_key, "Token": "", "Expiration": ends}
            self._send(200, json.dumps(body))
        elif query.get("Action") == "AssumeRoleWithWebIdentity" and query["WebIdentityToken"] == IDENTITY:
            access_key, secret_key, ends = self.owner.give()
            inner = f"<AccessKeyId>{access_key}</AccessKeyId><SecretAccessKey>{secret_key}</SecretAccessKey>"
            inner += f"<SessionToken></SessionToken><Expiration>{ends}</Expiration>"
            name = "AssumeRoleWithWebIdentityResult"
            self._send(200, f"<Response><{name}><Credentials>{inner}</Credentials></{name}></Response>")
        else:
            self._send(401, "not authorised")

    def _send(self, status: int, text: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_PUT = do_POST = _answer


@contextmanager
def metadata(*keys: tuple[str, str], lifetime_s: float = 3600.0) -> Iterator[Metadata]:
    """Run a server of credentials."""
    server = Metadata(*keys, lifetime_s=lifetime_s)
    try:
        yield server
    finally:
        server.stop()
