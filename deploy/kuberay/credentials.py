"""The Secrets of the cluster: tokens and passwords that are made once, and credentials from the environment."""

import base64
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from poolbench.errors import ConfigError
from poolbench.settings import PlaceSettings, S3Settings, Settings

NAMESPACE = "poolbench"
Document = dict[str, Any]
Values = dict[str, str]
RAY, REDIS, SERVICES = "poolbench-ray", "poolbench-redis", "poolbench-services"
S3, HUB = "poolbench-s3", "poolbench-hub"
BROKER_DATABASE = 1  # Ray keeps the state of its head in database 0 and knows no other
ENDPOINT = S3Settings.variable("endpoint")
_STORE = PlaceSettings.variable("store")
_TOKEN, _BROKER = PlaceSettings.variable("token"), PlaceSettings.variable("broker")
_SOURCE, _SOURCES = S3Settings.variable("credentials"), ("keys", "role")
_DEFAULT_STORE = "s3://poolbench"
_HUB_TOKEN = "HF_TOKEN"


def decoded(documents: Sequence[Document]) -> dict[str, Values]:
    """Return the Secrets of PoolBench among those that the cluster has, by name."""
    return {
        document["metadata"]["name"]: {
            name: base64.b64decode(value).decode() for name, value in document.get("data", {}).items()
        }
        for document in documents
        if document["metadata"]["name"] in (RAY, REDIS, SERVICES, S3, HUB)
    }


def wanted(have: Mapping[str, Values]) -> dict[str, Values]:
    """Return the Secrets that the cluster shall have.

    Tokens and passwords that exist are kept. Variables of the environment replace the values of earlier ones.

    Raises:
        ConfigError: The object store or its credentials are not known, or the store is a folder.
    """
    password = have.get(REDIS, {}).get("password") or secrets.token_hex(32)
    # The head needs the name of the store, and never its credentials.
    services = {_TOKEN: secrets.token_hex(32), _STORE: _DEFAULT_STORE, **have.get(SERVICES, {})}
    services |= _given(PlaceSettings, "token", "store", "sensitive")
    if not services[_STORE].startswith("s3://"):
        raise ConfigError(
            f"{_STORE} is {services[_STORE]!r}: pods share no folder; give s3://bucket or s3://bucket/prefix"
        )
    values_by_name = {
        RAY: {"auth_token": secrets.token_hex(32)} | have.get(RAY, {}),
        REDIS: {"password": password, "redis.conf": f"requirepass {password}\n"},
        SERVICES: services | {_BROKER: f"redis://:{password}@redis:6379/{BROKER_DATABASE}"},
        S3: _object_store(have.get(S3, {})),
        HUB: have.get(HUB, {}) | {name: os.environ[name] for name in (_HUB_TOKEN,) if os.environ.get(name)},
    }
    return {name: values for name, values in values_by_name.items() if values}


def documents(values: Mapping[str, Values]) -> list[Document]:
    """Return the Secrets as objects of Kubernetes."""
    metadata = {"namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "poolbench"}}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, **metadata}, "stringData": dict(data)}
        for name, data in values.items()
    ]


def store_port(endpoint: str) -> int:
    """Return the port of an S3 endpoint. Raise ConfigError if it is not an address, or if pods cannot reach it."""
    parts, ports = urlsplit(endpoint), {"http": 80, "https": 443}
    if parts.scheme not in ports or not parts.hostname:
        raise ConfigError(f"{ENDPOINT} is {endpoint!r}: give http://host[:port] or https://host[:port]")
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        raise ConfigError(
            f"{ENDPOINT} is {endpoint!r}, which means the pod itself: give an address that pods can reach"
        )
    return parts.port or ports[parts.scheme]


def _object_store(have: Mapping[str, str]) -> Values:
    variables = {**have, **_given(S3Settings, *S3Settings.model_fields)}
    source = variables.get(_SOURCE, "keys")
    if source not in _SOURCES:
        raise ConfigError(
            f"{_SOURCE} is {source!r}, which reads variables or files of this machine: pods have none of them; use "
            "keys, or role for the role of the pods' service account"
        )
    keys = (S3Settings.variable("access_key"), S3Settings.variable("secret_key")) if source == "keys" else ()
    needed = (ENDPOINT, *keys)
    if missing := [name for name in needed if not variables.get(name)]:
        raise ConfigError(
            f"{', '.join(missing)} not set: the cluster keeps its data in an S3 service outside of Kubernetes; "
            "set them in the environment of this command, which puts them into a Secret"
        )
    return variables


def _given(model: type[Settings], *fields: str) -> Values:
    """Return the variables of these fields that the environment or the folder of secrets sets."""
    loaded = model.load()
    names = [field for field in fields if field in loaded.model_fields_set]
    values = ((field, getattr(loaded, field)) for field in names)
    return {
        model.variable(field): str(value.get_secret_value() if isinstance(value, SecretStr) else value)
        for field, value in values
    }
