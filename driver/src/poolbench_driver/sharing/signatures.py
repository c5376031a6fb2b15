"""Signatures of files by OpenSSH, whose keys researchers have (ssh-keygen(1), options `-Y`)."""

import subprocess
from pathlib import Path

from poolbench.errors import ConfigError, InputError

#: Keeps a signature from being taken for one of another purpose.
NAMESPACE = "poolbench"


def sign(file: Path, key: Path) -> None:
    """Write the signature of a file beside it as `FILE.sig`.

    Args:
        key: A private key, or a public one whose private key ssh-agent holds.

    Raises:
        ConfigError: ssh-keygen is not installed.
        InputError: It refuses the key; the message has its reason.
    """
    if reason := _ssh_keygen("sign", "-f", key, "-n", NAMESPACE, file)[1]:
        raise InputError(f"--key {key}: {reason}; `ssh-keygen -t ed25519 -f FILE` makes a key")


def check(file: Path, signature: Path, signers: Path | None) -> str:
    """Return whose signature of a file it is, in words.

    Args:
        signers: Keys and their owners, as ALLOWED SIGNERS of ssh-keygen(1); None leaves open whose key it is.

    Raises:
        ConfigError: ssh-keygen is not installed.
        InputError: The signature is not one of this file, or not by one of the signers.
    """
    data, of_this = file.read_bytes(), ("-n", NAMESPACE, "-s", signature)
    if signers is None:
        shown, reason = _ssh_keygen("check-novalidate", *of_this, data=data)
        key = shown.split()[-1] if shown else ""
        words = f"signed with the key {key}; --signers FILE says whose keys are trusted"
    else:
        owners, reason = _ssh_keygen("find-principals", "-f", signers, "-s", signature)
        owner = owners.partition("\n")[0]
        words = f"signed by {owner}"
        if not reason:
            _, reason = _ssh_keygen("verify", "-f", signers, "-I", owner, *of_this, data=data)
    if reason:
        by = "" if signers is None else f" by a key of {signers}"
        raise InputError(f"it is not a signature of this bundle{by} ({reason})")
    return words


def _ssh_keygen(*arguments: str | Path, data: bytes | None = None) -> tuple[str, str]:
    """Return what ssh-keygen prints, and why it failed; "" if it did not."""
    try:
        done = subprocess.run(["ssh-keygen", "-Y", *map(str, arguments)], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        remedy = "install OpenSSH 8.2 or later (`apt install openssh-client`)"
        raise ConfigError(f"signatures need ssh-keygen, which is not on this machine: {remedy}") from None
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    reason = lines[-1][:200] if lines else f"ssh-keygen ended with {done.returncode}"
    return done.stdout.decode("utf-8", "replace"), reason if done.returncode else ""
