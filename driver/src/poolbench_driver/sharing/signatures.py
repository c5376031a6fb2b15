"""Signatures of files by OpenSSH, whose keys researchers have (ssh-keygen(1), options `-Y`)."""

import subprocess
from pathlib import Path

from poolbench.errors import ConfigError, InputError

#: Keeps a signature from being taken for one of another purpose.
NAMESPACE = "poolbench"


def sign(file: Path, key: Path) -> None:
    """Write the signature of a file by a private key beside it, as `FILE.sig`.

    Raises:
        ConfigError: ssh-keygen is not installed.
        InputError: It refuses the key; the message has its reason.
    """
    _ssh_keygen(f"--key {key} cannot sign", "sign", "-f", key, "-n", NAMESPACE, file)


def check(file: Path, signature: Path, signers: Path | None) -> str:
    """Return whose signature of a file it is, in words.

    Args:
        signers: Keys and their owners, as ALLOWED SIGNERS of ssh-keygen(1); None leaves open whose key it is.

    Raises:
        ConfigError: ssh-keygen is not installed.
        InputError: The signature is not one of this file, or not by one of the signers.
    """
    data, of_this, wrong = file.read_bytes(), ("-n", NAMESPACE, "-s", signature), "it is not a signature of this bundle"
    if signers is None:
        key = _ssh_keygen(wrong, "check-novalidate", *of_this, data=data).split()[-1]
        return f"signed with the key {key}; --signers FILE says whose keys are trusted"
    stranger = f"its key is not one of {signers}"
    owner = _ssh_keygen(stranger, "find-principals", "-f", signers, "-s", signature).partition("\n")[0]
    _ssh_keygen(wrong, "verify", "-f", signers, "-I", owner, *of_this, data=data)
    return f"signed by {owner}"


def _ssh_keygen(wrong: str, *arguments: str | Path, data: bytes | None = None) -> str:
    """Return what ssh-keygen prints; raise InputError that says what is wrong, with its reason, if it fails."""
    try:
        done = subprocess.run(["ssh-keygen", "-Y", *map(str, arguments)], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        remedy = "install OpenSSH 8.2 or later (`apt install openssh-client`)"
        raise ConfigError(f"signatures need ssh-keygen, which is not on this machine: {remedy}") from None
    if done.returncode:
        reason = (done.stderr or done.stdout).decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise InputError(f"{wrong} ({reason[:200] or f'ssh-keygen ended with {done.returncode}'})")
    return done.stdout.decode("utf-8", "replace")
