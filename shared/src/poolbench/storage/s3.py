"""Objects in any S3 service, through the minio client."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import PurePosixPath
from urllib.parse import urlparse

import urllib3
from minio import Minio
from minio.commonconfig import CopySource
from minio.error import MinioException, S3Error

from poolbench.contracts.wire import MANIFEST_FILE, OCTET_STREAM
from poolbench.errors import AccessDeniedError, ConfigError, NotFoundError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage.base import ObjectInfo

_NEEDED = ("endpoint", "access_key", "secret_key")
_PART_BYTES = 64 << 20
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 120
_PRESIGNED_FOR = timedelta(minutes=15)
_ABSENT = ("NoSuchKey", "NoSuchObject", "NoSuchVersion")
_EXISTS, _CONFLICT = 412, 409  # a conditional write lost; or met another one, and is to be tried again
_CONFLICT_ATTEMPTS = 8
_DENIED = (401, 403)
_DENIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "Forbidden")


class S3Store:
    """ObjectStore over one bucket and prefix of an S3 service."""

    def __init__(self, uri: str, client: Minio, http: urllib3.PoolManager, *, existing: bool = False) -> None:
        """Open `uri`, creating its bucket if there is none. Conditional writes go through the client's pool `http` too.

        With `existing` the bucket is neither looked for nor created, because narrow credentials may do neither. Raise
        ConfigError if the URI names no bucket, StoreError if the service does not answer or refuses the credentials.
        """
        parts = urlparse(uri)
        if parts.scheme != "s3" or not parts.netloc:
            raise ConfigError(f"object store {uri!r} must be s3://bucket/prefix")
        self.uri = uri.rstrip("/")
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._client, self._http = client, http
        with self._errors("opening the bucket"):
            if not existing and not client.bucket_exists(self._bucket):
                self._create_bucket()

    @classmethod
    def open(cls, uri: str, service: S3Settings, *, existing: bool = False) -> S3Store:
        """Return the store that `s3://bucket/prefix` names. Raise ConfigError without endpoint or credentials."""
        if absent := [service.variable(name) for name in _NEEDED if not getattr(service, name)]:
            raise ConfigError(f"object store {uri}: set {', '.join(absent)}")
        parts = urlparse(service.endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            name = service.variable("endpoint")
            raise ConfigError(f"{name} is {service.endpoint!r}: give it as http://host:port or https://host")
        http = _connections()
        client = Minio(
            parts.netloc,
            access_key=service.access_key.get_secret_value(),
            secret_key=service.secret_key.get_secret_value(),
            secure=parts.scheme == "https",
            region=service.region,
            http_client=http,
        )
        return cls(uri, client, http, existing=existing)

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        name = self._name(path)
        with self._errors(f"writing {path}"):
            if if_absent:
                return self._put_if_absent(name, data)
            self._client.put_object(self._bucket, name, io.BytesIO(data), len(data), part_size=_PART_BYTES)
        return True

    def get(self, path: str) -> bytes:
        with self._errors(f"reading {path}"):
            response = self._client.get_object(self._bucket, self._name(path))
            try:
                return bytes(response.read())
            finally:
                response.close()
                response.release_conn()

    def exists(self, path: str) -> bool:
        try:
            with self._errors(f"looking for {path}"):
                self._client.stat_object(self._bucket, self._name(path))
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        root = f"{self._prefix}/" if self._prefix else ""
        with self._errors(f"listing {prefix}"):
            for item in self._client.list_objects(self._bucket, prefix=root + prefix, recursive=True):
                modified = item.last_modified.timestamp() if item.last_modified else 0.0
                yield ObjectInfo(str(item.object_name).removeprefix(root), item.size or 0, modified)

    def delete(self, path: str) -> None:
        with self._errors(f"deleting {path}"):
            self._client.remove_object(self._bucket, self._name(path))

    def move(self, source: str, target: str) -> bool:
        below = [info.path for info in self.list(f"{source}/")]
        found = [*([source] if self.exists(source) else []), *below]
        for path in sorted(found, key=lambda path: not path.endswith(f"/{MANIFEST_FILE}")):
            with self._errors(f"moving {path}"):
                origin = CopySource(self._bucket, self._name(path))
                self._client.copy_object(self._bucket, self._name(target + path.removeprefix(source)), origin)
            self.delete(path)
        return bool(found)

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        """PUT with `If-None-Match: *`, presigned because the client's `put_object` takes no such header."""
        url = self._client.presigned_put_object(self._bucket, name, expires=_PRESIGNED_FOR)
        headers = {"If-None-Match": "*", "Content-Type": OCTET_STREAM}
        for attempt in range(_CONFLICT_ATTEMPTS):
            # No transparent retries: a retry after a lost response would conflict with our own write.
            answer = self._http.request("PUT", url, body=data, headers=headers, retries=False)
            if answer.status == _EXISTS:
                return False
            if answer.status < 400:
                return True
            if answer.status in _DENIED:
                raise AccessDeniedError(f"object store {self.uri}: a conditional write was answered {answer.status}")
            if answer.status != _CONFLICT:
                break
            time.sleep(0.05 * 2**attempt)
        raise StoreError(f"object store {self.uri}: a conditional write was answered {answer.status}")

    def _create_bucket(self) -> None:
        try:
            self._client.make_bucket(self._bucket)
        except S3Error as error:
            if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise

    def _name(self, path: str) -> str:
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ConfigError(f"object path {path!r} must be relative and without '..'")
        return f"{self._prefix}/{path}" if self._prefix else path

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except S3Error as error:
            if error.code in _ABSENT:
                raise NotFoundError(f"no object in {self.uri} ({doing})") from None
            kind = AccessDeniedError if error.code in _DENIALS else StoreError
            raise kind(f"object store {self.uri}, {doing}: {_explain(error)}") from error
        except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(
                f"object store {self.uri}, {doing}: no answer ({error}); check POOLBENCH_S3_ENDPOINT"
            ) from error


def _connections() -> urllib3.PoolManager:
    """Return connections that time out, and retry what a server was too busy for."""
    return urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_READ_TIMEOUT_S),
        maxsize=16,
        retries=urllib3.Retry(total=3, backoff_factor=0.3, status_forcelist=(500, 502, 503, 504)),
    )


def _explain(error: S3Error) -> str:
    if error.code in _DENIALS:
        return f"the credentials are refused ({error.code}); check POOLBENCH_S3_ACCESS_KEY and _SECRET_KEY"
    return f"{error.code}: {error.message}"
