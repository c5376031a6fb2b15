"""`python -m deploy.docker.s3_setup`: create the bucket of Docker Compose's own S3 service, with its policy.

The users are those of `keys.py`; each has the role of its name in `deploy/s3`. Root's credentials, which the
environment's S3 settings name here, are used for this alone.
"""

import json
import sys
from urllib.parse import urlsplit

from deploy.s3.policies import bucket_policy
from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, PoolbenchError, shown
from poolbench.settings import PlaceSettings, S3Settings
from poolbench.storage.s3.client import Client

#: Users with a role of their own; root is none of them.
USERS = ("driver", "services")
#: How SeaweedFS names a user in policies.
_PRINCIPAL = "arn:aws:iam::000000000000:user/{}"


def policy(store_uri: str) -> str:
    """Return the policy of the bucket as JSON: each user has the rights of its role."""
    return json.dumps(bucket_policy({user: _PRINCIPAL.format(user) for user in USERS}, store_uri))


def prepare(store_uri: str) -> None:
    """Create the bucket if it is absent, and set its policy."""
    bucket = urlsplit(store_uri).netloc
    if not bucket:
        raise ConfigError(f"{shown(store_uri)} is not s3://bucket or s3://bucket/prefix")
    client = Client.of(S3Settings.load())
    if not client.bucket_exists(bucket):
        client.make_bucket(bucket)
    client.set_bucket_policy(bucket, policy(store_uri))


if __name__ == "__main__":
    try:
        prepare(PlaceSettings.load().store)
    except PoolbenchError as error:
        print(f"error {error}", file=sys.stderr)
        sys.exit(Exit.USAGE)
