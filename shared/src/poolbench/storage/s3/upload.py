"""Uploads of large objects: in parts, several at once."""

from __future__ import annotations

import math
import uuid
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress

from minio.datatypes import Part
from minio.error import S3Error

from poolbench.contracts.wire import OCTET_STREAM
from poolbench.errors import StoreError
from poolbench.storage.s3.client import MARK_HEADER, Client
from poolbench.storage.s3.retries import FAILURES

PART_BYTES = 64 << 20
PARALLEL = 4
#: S3 takes at most this many parts.
_MAX_PARTS = 10_000


def upload(client: Client, bucket: str, name: str, data: bytes, part_bytes: int) -> None:
    """Store a large object. Parts are views of `data`, so that nothing is copied.

    minio's own upload leaves its parts behind when it is interrupted (Ctrl-C), and takes the error that S3 may put into
    a response of status 200 for success.

    Raises:
        StoreError: The service did not put the parts together. This or any other failure leaves no parts.
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
