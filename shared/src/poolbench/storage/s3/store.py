"""Objects in one bucket of an S3 service."""

import math
import uuid
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import PurePosixPath
from urllib.parse import urlparse

from minio.commonconfig import CopySource
from minio.datatypes import Part
from minio.error import S3Error
from minio.helpers import check_bucket_name

from poolbench.contracts.wire import MANIFEST_FILE, OCTET_STREAM
from poolbench.errors import ConfigError, NotFoundError, StoreError
from poolbench.settings import S3Settings
from poolbench.storage.base import ObjectInfo
from poolbench.storage.s3.client import MARK_HEADER, Client
from poolbench.storage.s3.retries import FAILURES, explained, retried

PART_BYTES = 64 << 20
PARALLEL = 4
#: S3 takes at most this many parts.
_MAX_PARTS = 10_000
#: An operator waits for the answer when a store is opened, and the service may be down or misspelled.
_OPEN_DEADLINE_S = 10.0


def upload(client: Client, bucket: str, name: str, data: bytes, part_bytes: int) -> None:
    """Store a large object in parts, which are views of `data` and not copies.

    minio's own upload leaves its parts behind if it is interrupted (Ctrl-C). It also misses errors that S3 reports in a
    response with status 200.

    Raises:
        StoreError: The service did not combine the parts.

    After any failure the upload is aborted, which removes the parts. If the service is away, a lifecycle rule of the
    bucket has to remove them.
    """
    mark = uuid.uuid4().hex
    upload_id = client._create_multipart_upload(bucket, name, {"Content-Type": OCTET_STREAM, MARK_HEADER: mark})
    try:
        parts = _sent(client, bucket, name, memoryview(data), upload_id, part_bytes)
        _complete(client, bucket, name, upload_id, parts, mark)
    except BaseException:
        with suppress(*FAILURES):  # the first error says more; a lifecycle rule of the bucket removes the parts
            client._abort_multipart_upload(bucket, name, upload_id)
        raise


def _sent(client: Client, bucket: str, name: str, data: memoryview, upload_id: str, part_bytes: int) -> list[Part]:
    """Upload the parts. After a failure, wait for those in flight: an aborted upload could otherwise get more parts."""
    size = max(part_bytes, math.ceil(len(data) / _MAX_PARTS))
    pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="upload")
    try:
        sent = [
            pool.submit(client._upload_part, bucket, name, data[start : start + size], None, upload_id, number)  # type: ignore[arg-type]
            for number, start in enumerate(range(0, len(data), size), start=1)
        ]
        for ended in wait(sent, return_when=FIRST_EXCEPTION).done:
            ended.result()  # raises the failure, while others still run
        return [Part(number, future.result()) for number, future in enumerate(sent, start=1)]
    finally:
        pool.shutdown(cancel_futures=True)


def _complete(client: Client, bucket: str, name: str, upload_id: str, parts: list[Part], mark: str) -> None:
    try:
        if client._complete_multipart_upload(bucket, name, upload_id, parts).etag:
            return
        reason = "the service answered with an error"
    except S3Error as error:
        if error.code != "NoSuchUpload":
            raise
        reason = "the upload is gone"
    if client.mark_of(bucket, name) != mark:  # else the response to an earlier attempt was lost
        raise StoreError(f"object store: {name} could not be put together from {len(parts)} parts: {reason}")


class S3Store:
    """An object store in a bucket of an S3 service, below a prefix."""

    def __init__(self, uri: str, service: S3Settings, *, existing: bool = False, part_bytes: int = PART_BYTES) -> None:
        """Open `s3://bucket/prefix`, creating the bucket if there is none.

        Args:
            uri: Bucket and prefix.
            service: Endpoint, region and credentials.
            existing: Neither look for the bucket nor create it, because narrow credentials may do neither.
            part_bytes: Larger objects are uploaded in parts of this size.

        Raises:
            ConfigError: The URI names no bucket, or settings are missing, malformed or of another region.
            StoreError: The service does not answer or refuses the credentials.
        """
        parts = urlparse(uri)
        if parts.scheme != "s3" or not parts.netloc:
            raise ConfigError(f"object store {uri!r} must be s3://bucket/prefix")
        self.uri = uri.rstrip("/")
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._service, self._part_bytes = service, part_bytes
        try:
            check_bucket_name(self._bucket)
            self._client = Client.of(service)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"object store {uri}: {error}") from None
        if not existing:
            self._open_bucket()

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        name = self._name(path)
        with explained(self.uri, self._service, f"writing {path}"):
            if if_absent:
                return self._client.put_if_absent(self._bucket, name, data)
            if len(data) > self._part_bytes:
                upload(self._client, self._bucket, name, data, self._part_bytes)
            else:
                self._client.put(self._bucket, name, data)
        return True

    def get(self, path: str) -> bytes:
        name = self._name(path)
        with explained(self.uri, self._service, f"reading {path}"):
            return self._client.get(self._bucket, name)

    def exists(self, path: str) -> bool:
        name = self._name(path)
        try:
            with explained(self.uri, self._service, f"looking for {path}"):
                self._client.stat_object(self._bucket, name)
        except NotFoundError:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        root = f"{self._prefix}/" if self._prefix else ""
        with explained(self.uri, self._service, f"listing {prefix}"):
            for item in self._client.list_objects(self._bucket, prefix=root + prefix, recursive=True):
                modified = item.last_modified.timestamp() if item.last_modified else 0.0
                yield ObjectInfo(str(item.object_name).removeprefix(root), item.size or 0, modified)

    def delete(self, path: str) -> None:
        name = self._name(path)
        with explained(self.uri, self._service, f"deleting {path}"):
            self._client.remove_object(self._bucket, name)

    def move(self, source: str, target: str) -> bool:
        below = [info.path for info in self.list(f"{source}/")]
        paths = [*([source] if self.exists(source) else []), *below]
        for path in sorted(paths, key=lambda path: not path.endswith(f"/{MANIFEST_FILE}")):
            with explained(self.uri, self._service, f"moving {path}"):
                origin = CopySource(self._bucket, self._name(path))
                self._client.copy_object(self._bucket, self._name(target + path.removeprefix(source)), origin)
            self.delete(path)
        return bool(paths)

    def blocked(self, path: str) -> str:
        return ""

    def now_s(self, path: str = "") -> float:
        clock = self._client.clock
        if clock.now_s() is None:
            self.exists(path or "health/clock")
        now_s = clock.now_s()
        return clock.signing_time().timestamp() if now_s is None else now_s

    def _open_bucket(self) -> None:
        """Look for the bucket, and create it if there is none."""
        client, bucket = self._client, self._bucket
        patience_s, client.deadline_s = client.deadline_s, min(client.deadline_s, _OPEN_DEADLINE_S)
        with explained(self.uri, self._service, "opening the bucket"):
            if not client.bucket_exists(bucket):
                try:
                    retried(lambda: client.make_bucket(bucket), client.deadline_s)  # minio sends it past `_execute`
                except ValueError as error:  # S3 knows old buckets whose names no new one may have
                    raise ConfigError(f"object store {self.uri}: {error}") from None
                except S3Error as error:
                    if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                        raise
        client.deadline_s = patience_s

    def _name(self, path: str) -> str:
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise ConfigError(f"object path {path!r} must be relative and without '..'")
        return f"{self._prefix}/{path}" if self._prefix else path
