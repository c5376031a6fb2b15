"""TLS of the HTTP services: the files of the proxy, and how clients check its certificate."""

import ssl
from pathlib import Path

from poolbench.errors import ConfigError
from poolbench.settings import HttpSettings


def server_files() -> dict[str, str]:
    """Return the certificate and key of the proxy, as Serve's and uvicorn's options name them; empty for plain HTTP.

    Raise ConfigError if one of the two is missing, or they do not fit together.
    """
    settings = HttpSettings.load()
    if settings.tls_cert is None and settings.tls_key is None:
        return {}
    cert, key = (_file(name) for name in ("tls_cert", "tls_key"))
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the certificate {cert} and the key {key} cannot be used ({error}): give PEM files that belong together, "
            "the key without a passphrase"
        ) from None
    return {"ssl_certfile": str(cert), "ssl_keyfile": str(key)}


def client_context() -> ssl.SSLContext | bool:
    """Return the certificates that clients trust: those of the CA file, or True for the well-known authorities.

    Raise ConfigError for a file without certificates.
    """
    if HttpSettings.load().ca_file is None:
        return True
    file = _file("ca_file")
    try:
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{HttpSettings.variable('ca_file')} {file} holds no certificate in PEM: {error}") from None


def _file(field: str) -> Path:
    name, path = HttpSettings.variable(field), getattr(HttpSettings.load(), field)
    if path is None:
        raise ConfigError(f"{name} is not set: TLS needs both a certificate and its key")
    file: Path = path.expanduser()
    if not file.is_file():
        raise ConfigError(f"{name} is {str(path)!r}, which is not a file")
    return file.resolve()
