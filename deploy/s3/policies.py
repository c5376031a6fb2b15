"""`python -m deploy.s3.policies ROLE s3://bucket/prefix`: print the policy of a role for a store.

The files beside this one hold the policies, with BUCKET and STORE in place of the bucket and of `bucket/prefix`.
`--principal` prints statements of a bucket policy instead, for services such as Ceph that have no policies of users.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from poolbench.contracts.wire import Exit
from poolbench.errors import ConfigError, PoolbenchError, shown

FOLDER = Path(__file__).parent
ROLES = ("driver", "services", "reader")

Policy = dict[str, Any]


def policy(role: str, store_uri: str) -> Policy:
    """Return the policy of a role for the store `s3://bucket/prefix`. Raise ConfigError for another URI."""
    parts = urlsplit(store_uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"{shown(store_uri)} is not a store with users: give s3://bucket or s3://bucket/prefix")
    text = (FOLDER / f"{role}.json").read_text("utf-8")
    store = "/".join(filter(None, (parts.netloc, parts.path.strip("/"))))
    document: Policy = json.loads(text.replace(":::STORE", f":::{store}").replace(":::BUCKET", f":::{parts.netloc}"))
    return document


def bucket_policy(principals: dict[str, str], store_uri: str) -> Policy:
    """Return one policy for the bucket that gives each role to its principal.

    Args:
        principals: ARN of a user by role, such as `arn:aws:iam:::user/driver`.
        store_uri: The store, `s3://bucket/prefix`.
    """
    statements = [
        {**statement, "Sid": f"{role.title()}{statement['Sid']}", "Principal": {"AWS": [principal]}}
        for role, principal in principals.items()
        for statement in policy(role, store_uri)["Statement"]
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def main() -> int:
    """Print one policy."""
    parser = argparse.ArgumentParser(prog="python -m deploy.s3.policies", description=__doc__)
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("store", help="s3://bucket or s3://bucket/prefix")
    parser.add_argument("--principal", default="", help="ARN of the user, for a bucket policy")
    arguments = parser.parse_args()
    try:
        if arguments.principal:
            document = bucket_policy({arguments.role: arguments.principal}, arguments.store)
        else:
            document = policy(arguments.role, arguments.store)
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return Exit.USAGE
    print(json.dumps(document, indent=2))
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
