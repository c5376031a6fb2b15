"""Credentials of S3 from settings, environment, a file, or the role of the machine; renewed before they expire."""

import logging
import os
import re
import threading
from collections.abc import Callable
from configparser import Error as ConfigParserError
from datetime import UTC, timedelta

import urllib3
from minio.credentials import (
    AWSConfigProvider,
    ChainedProvider,
    Credentials,
    EnvAWSProvider,
    EnvMinioProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)

from poolbench.errors import AccessDeniedError, ConfigError
from poolbench.settings import S3Settings
from poolbench.storage.s3.clock import ServerClock

_LOG = logging.getLogger("poolbench.storage")
#: A request may be tried again for as long as a deadline allows; its credentials should not expire meanwhile.
_MARGIN = timedelta(seconds=60)
_METADATA_TIMEOUT_S, _METADATA_RETRIES = 2.0, 3
_REMEDIES = {
    "environment": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or MINIO_ACCESS_KEY and MINIO_SECRET_KEY",
    "file": "give aws_access_key_id and aws_secret_access_key in that section of the file",
    "role": "attach a role to the machine, the container or the Kubernetes service account",
}


class RenewedCredentials(Provider):
    """The credentials of a provider, cached until a minute before they expire or until the store refuses them."""

    def __init__(self, make: Callable[[], Provider], clock: ServerClock, what: str, remedy: str) -> None:
        """Set the provider of the credentials, which `make` returns.

        Error messages name the setting `what` and the `remedy`.
        """
        self._make, self._clock = make, clock
        self._what, self._remedy = what, remedy
        self._current: Credentials | None = None
        self._lock = threading.Lock()

    def retrieve(self) -> Credentials:
        """Return credentials. Raise AccessDeniedError if there are none."""
        with self._lock:
            if self._current is None:
                self._current = self._retrieved()
            elif self._left() < _MARGIN:
                self._current = self._replaced(self._current)
            return self._current

    def renew(self, refused: Credentials) -> bool:
        """Retrieve new credentials after a refusal. Return whether they differ from the refused credentials."""
        with self._lock:
            if self._current == refused:
                self._current = self._retrieved()
            return self._current != refused

    def _replaced(self, old: Credentials) -> Credentials:
        """Return new credentials. If the provider does not answer, return the old credentials while they are valid."""
        try:
            return self._retrieved()
        except AccessDeniedError as error:
            if self._left() <= timedelta():
                raise
            _LOG.warning("%s; the present credentials are valid for %s more", error, self._left())
            return old

    def _left(self) -> timedelta:
        """Return how long the credentials are valid, by the clock of the server that checks them."""
        if self._current is None or self._current.expiration is None:
            return timedelta.max
        return self._current.expiration.replace(tzinfo=UTC) - self._clock.signing_time()

    def _retrieved(self) -> Credentials:
        try:
            return self._make().retrieve()
        except (ValueError, KeyError, TypeError, OSError, ConfigParserError, urllib3.exceptions.HTTPError) as error:
            # A request for a role has its token in the query, and errors quote addresses.
            reason = re.sub(r"\?\S+", "?...", str(error) or type(error).__name__)
            raise AccessDeniedError(f"{self._what} gives no credentials ({reason}): {self._remedy}") from None


def credentials_of(service: S3Settings, clock: ServerClock) -> RenewedCredentials:
    """Return the credentials that the settings ask for. Raise ConfigError if keys are asked for and not set."""
    source = service.credentials
    what = f"{service.variable('credentials')}={source}"
    if source != "keys":
        return RenewedCredentials(lambda: _provider(service), clock, what, _REMEDIES[source])
    if absent := [service.variable(name) for name in ("access_key", "secret_key") if not getattr(service, name)]:
        name = service.variable("credentials")
        raise ConfigError(f"set {' and '.join(absent)}, or take credentials from elsewhere with {name}")
    keys = StaticProvider(service.access_key.get_secret_value(), service.secret_key.get_secret_value())
    return RenewedCredentials(lambda: keys, clock, what, f"check {service.variable('access_key')}")


def _provider(service: S3Settings) -> Provider:
    if service.credentials == "environment":
        return ChainedProvider([EnvAWSProvider(), EnvMinioProvider()])
    if service.credentials == "file":
        file = service.credentials_file
        return AWSConfigProvider(str(file.expanduser()) if file else None, service.profile or None)
    # The addresses of a role are those that every AWS tool reads from the environment.
    identity = "AWS_WEB_IDENTITY_TOKEN_FILE" in os.environ
    container = any(name.startswith("AWS_CONTAINER_CREDENTIALS_") for name in os.environ)
    name = "AWS_ENDPOINT_URL_STS" if identity else "AWS_EC2_METADATA_SERVICE_ENDPOINT"
    return IamAwsProvider(
        custom_endpoint=os.environ.get(name) if identity or not container else None,
        http_client=urllib3.PoolManager(
            timeout=_METADATA_TIMEOUT_S,
            retries=urllib3.Retry(_METADATA_RETRIES, backoff_factor=0.2, status_forcelist=(500, 502, 503, 504)),
        ),
    )
