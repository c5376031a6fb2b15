"""`python -m deploy.docker.s3_users`: create MinIO's bucket and two users, then wait for the end.

One user may access everything but `restricted/`, the other nothing but that. MinIO's root credentials stay here.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minio import Minio
from minio.credentials import StaticProvider
from minio.error import MinioAdminException
from minio.minioadmin import MinioAdmin

from poolbench.contracts.wire import RESTRICTED_FOLDER
from poolbench.settings import PlaceSettings, RestrictedS3Settings, S3Settings

READY_FILE = Path("/tmp/ready")
_OBJECT_ACTIONS = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
_BUCKET_ACTIONS = ["s3:ListBucket", "s3:GetBucketLocation"]
_ENDS = {signal.SIGTERM, signal.SIGINT}
_ALREADY = "PolicyChangeAlreadyApplied"


def policies(store_uri: str) -> dict[str, dict[str, Any]]:
    """Return the policies of the two users of `s3://bucket/prefix`.

    Both may list the bucket: without that right, S3 answers 403 instead of 404 for a missing object.
    """
    bucket, prefix = _place(store_uri)
    resource = "arn:aws:s3:::" + "/".join(filter(None, (bucket, prefix)))
    restricted = f"{resource}/{RESTRICTED_FOLDER}/*"
    listing = _statement("Allow", _BUCKET_ACTIONS, f"arn:aws:s3:::{bucket}")
    ordinary = [_statement("Allow", _OBJECT_ACTIONS, f"{resource}/*"), _statement("Deny", _OBJECT_ACTIONS, restricted)]
    own = [_statement("Allow", _OBJECT_ACTIONS, restricted)]
    return {
        "poolbench-ordinary": {"Version": "2012-10-17", "Statement": [listing, *ordinary]},
        "poolbench-restricted": {"Version": "2012-10-17", "Statement": [listing, *own]},
    }


def prepare(store_uri: str) -> None:
    """Create bucket, policies and users; existing ones are left, or given the same settings again."""
    ordinary, restricted = S3Settings.load(), RestrictedS3Settings.load()
    endpoint = urlsplit(ordinary.endpoint)
    root = StaticProvider(os.environ["MINIO_ROOT_USER"], os.environ["MINIO_ROOT_PASSWORD"])
    secure = endpoint.scheme == "https"
    bucket, _ = _place(store_uri)
    client = Minio(endpoint.netloc, credentials=root, secure=secure)
    if not client.bucket_exists(bucket):
        client.make_bucket(bucket)
    admin = MinioAdmin(endpoint=endpoint.netloc, credentials=root, secure=secure)
    for (name, policy), keys in zip(policies(store_uri).items(), (ordinary, restricted), strict=True):
        user = keys.access_key.get_secret_value()
        admin.policy_add(name, policy=policy)
        admin.user_add(user, keys.secret_key.get_secret_value())
        try:
            admin.attach_policy([name], user=user)
        except MinioAdminException as error:
            if _ALREADY not in str(error):  # the client gives the code in the text of its error alone
                raise


def _place(store_uri: str) -> tuple[str, str]:
    parts = urlsplit(store_uri)
    return parts.netloc, parts.path.strip("/")


def _statement(effect: str, actions: list[str], resource: str) -> dict[str, Any]:
    return {"Effect": effect, "Action": actions, "Resource": [resource]}


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # the first process of a container gets no others
    store = PlaceSettings.load().store
    prepare(store)
    READY_FILE.write_text(json.dumps(sorted(policies(store))))
    signal.sigwait(_ENDS)
