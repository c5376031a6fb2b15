"""The minio client with what it lacks: signed retries, the server's clock, renewed credentials, conditional writes."""

import uuid
from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlparse

from minio import Minio
from minio.credentials import Credentials
from minio.error import S3Error
from minio.helpers import DictType
from minio.time import to_amz_date
from urllib3 import BaseHTTPResponse

from poolbench.contracts.wire import OCTET_STREAM
from poolbench.errors import ConfigError
from poolbench.settings import S3Settings
from poolbench.storage.s3.clock import Connections, ServerClock
from poolbench.storage.s3.credentials import RenewedCredentials, credentials_of
from poolbench.storage.s3.retries import retried, status_of

#: User metadata that names one conditional write, or one upload in parts. It decides whether a lost response succeeded.
MARK_HEADER = "x-amz-meta-poolbench-attempt"
CONDITION_HEADER = "If-None-Match"
_EXISTS = 412
_REFUSED = (400, 401, 403)


class Client(Minio):
    """An S3 client that retries failed requests, and signs each attempt with the present time and credentials.

    minio has no hooks for this. Every request of minio goes through its methods `_build_headers` and `_execute`, which
    this class overrides. Tests compare these methods with the pinned release.
    """

    def __init__(
        self, endpoint: str, credentials: RenewedCredentials, clock: ServerClock, *, region: str, deadline_s: float
    ) -> None:
        """Connect to `http://host:port` or `https://host`. A failing request is retried for `deadline_s` seconds."""
        parts = urlparse(endpoint)
        secure = parts.scheme == "https"
        super().__init__(
            parts.netloc, credentials=credentials, secure=secure, region=region, http_client=Connections(clock)
        )
        self.clock, self.deadline_s = clock, deadline_s
        self._renewed = credentials

    @classmethod
    def of(cls, service: S3Settings) -> "Client":
        """Return the client of a service. Raise ConfigError if the settings of the service are incomplete or wrong."""
        name = service.variable("endpoint")
        parts = urlparse(service.endpoint)
        if not service.endpoint:
            raise ConfigError(f"set {name} to the address of the S3 service: http://host:port or https://host")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{name} is {service.endpoint!r}: give it as http://host:port or https://host")
        clock = ServerClock()
        credentials = credentials_of(service, clock)
        return cls(service.endpoint, credentials, clock, region=service.region, deadline_s=service.deadline_s)

    def put(self, bucket: str, name: str, data: bytes | memoryview) -> None:
        """Store an object in one request."""
        self._execute("PUT", bucket, name, body=data, headers={"Content-Type": OCTET_STREAM}, no_body_trace=True)

    def put_if_absent(self, bucket: str, name: str, data: bytes) -> bool:
        """Store an object if it does not exist yet. Return whether this call stored the object.

        Status 412 means that the object exists. If it has the mark of this call, an earlier attempt of this call stored
        it and the response was lost. Status 409 means that another conditional write is in progress. The request is
        then repeated.
        """
        mark = uuid.uuid4().hex
        headers: DictType = {CONDITION_HEADER: "*", "Content-Type": OCTET_STREAM, MARK_HEADER: mark}
        try:
            self._execute("PUT", bucket, name, body=data, headers=headers, no_body_trace=True)
        except S3Error as error:
            if status_of(error) != _EXISTS:
                raise
            return self.mark_of(bucket, name) == mark
        return True

    def mark_of(self, bucket: str, name: str) -> str | None:
        """Return the mark of an object, or None if the object is missing or has no mark."""
        try:
            return self._execute("HEAD", bucket, name).headers.get(MARK_HEADER)
        except S3Error as error:
            if status_of(error) == 404:
                return None
            raise

    def get(self, bucket: str, name: str) -> bytes:
        """Return an object. A response that breaks off is requested again."""
        return bytes(self._execute("GET", bucket, name).data)

    def _build_headers(
        self,
        host: str,
        headers: DictType | None = None,
        body: bytes | None = None,
        creds: Credentials | None = None,
    ) -> tuple[DictType, datetime]:
        built, _ = super()._build_headers(host, headers, body, creds)
        date = self.clock.signing_time()
        built["x-amz-date"] = to_amz_date(date)
        return built, date

    def _execute(
        self,
        method: str,
        bucket_name: str | None = None,
        object_name: str | None = None,
        body: bytes | memoryview | None = None,
        headers: DictType | None = None,
        query_params: DictType | None = None,
        preload_content: bool = True,
        no_body_trace: bool = False,
    ) -> BaseHTTPResponse:
        def send() -> BaseHTTPResponse:
            return super(Client, self)._execute(
                method,
                bucket_name,
                object_name,
                body=body,  # type: ignore[arg-type]  # it is hashed and sent, and may be any buffer
                headers=dict(headers or {}),  # signing adds to them
                query_params=query_params,
                preload_content=preload_content,
                no_body_trace=no_body_trace,
            )

        return retried(lambda: self._corrected(send), self.deadline_s, conditional=CONDITION_HEADER in (headers or {}))

    def _corrected(self, send: Callable[[], BaseHTTPResponse]) -> BaseHTTPResponse:
        """Send a request. If the request is refused because of our clock or old credentials, send it once more."""
        correction_s, credentials = self.clock.correction_s, self._renewed.retrieve()
        try:
            return send()
        except S3Error as error:
            if status_of(error) not in _REFUSED:
                raise
            date = error.response.headers.get("date")
            if not self.clock.learn(date, correction_s) and not self._renewed.renew(credentials):
                raise
        return send()
