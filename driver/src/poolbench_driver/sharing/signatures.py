"""Signatures of files by OpenSSH, whose keys researchers have (ssh-keygen(1), options `-Y`)."""

import re
import subprocess
import tempfile
from pathlib import Path

from poolbench.errors import ConfigError, InputError

#: Keeps a signature from being taken for one of another purpose.
NAMESPACE = "poolbench"


def sign(file: Path, key: Path) -> None:
    """Write the signature of a file by a private key beside it, as `FILE.sig`.

    Raises:
        ConfigError: ssh-keygen is not installed.
        InputError: ssh-keygen refuses the key. The message has the reason.
    """
    _ssh_keygen(f"--key {key} cannot sign", "sign", "-f", key, "-n", NAMESPACE, file)


def check(file: Path, signature: Path, signers: Path | None) -> str:
    """Return the signer of a file, in words.

    Args:
        signers: File of keys and owners, as in ALLOWED SIGNERS of ssh-keygen(1). If None, any key is accepted.

    Raises:
        ConfigError: ssh-keygen is not installed, or `signers` cannot be read.
        InputError: The signature is not one of this file, or no line of the signers permits its key.
    """
    data, of_this = file.read_bytes(), ("-n", NAMESPACE, "-s", signature)
    good = _ssh_keygen("it is not a signature of this bundle", "check-novalidate", *of_this, data=data)
    key, reasons = good.split()[-1], list[str]()
    if signers is None:
        return f"signed with the key {key}; --signers FILE says whose keys are trusted"
    try:
        lines = signers.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"--signers {signers} cannot be read ({error.strerror}); name a file of keys") from None
    for number, line in enumerate(lines, start=1):
        owner, reason = _owner(line, signature, data)
        if owner:
            return f"signed by {owner}"
        reasons += [f"line {number}: {reason}"] if reason else []
    more = f" ({'; '.join(reasons[:3])})" if reasons else ""
    raise InputError(f"no line of {signers} permits its key {key}{more}")


def _owner(line: bytes, signature: Path, data: bytes) -> tuple[str, str]:
    """Return the owner that a line of allowed signers gives the signing key, or the reason why the line refuses it.

    OpenSSH reads the line, so that patterns, options and certificates have its meaning. Lines are read one at a time,
    because OpenSSH takes owners of a whole file from the first line with the key, even if only a later line permits it.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(line + b"\n")
        file.flush()
        done = _run("find-principals", "-f", file.name, "-s", signature)
        owner = next((name for name in done.stdout.decode("utf-8", "replace").split("\n") if name[:1] != "!"), "")
        if owner:
            done = _run("verify", "-f", file.name, "-I", owner, "-n", NAMESPACE, "-s", signature, data=data)
    if not done.returncode:
        return owner, ""
    # A line of another key has no reason of its own.
    reasons = re.findall(rf"^{re.escape(file.name)}:1: (.*)", done.stderr.decode("utf-8", "replace"), re.MULTILINE)
    return "", reasons[0].strip()[:200] if reasons and line.strip() else ""


def _ssh_keygen(wrong: str, *arguments: str | Path, data: bytes | None = None) -> str:
    """Return the output of ssh-keygen. If it fails, raise InputError with the text `wrong` and the reason."""
    done = _run(*arguments, data=data)
    if done.returncode:
        reason = (done.stderr or done.stdout).decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise InputError(f"{wrong} ({reason[:200] or f'ssh-keygen ended with {done.returncode}'})")
    return done.stdout.decode("utf-8", "replace")


def _run(*arguments: str | Path, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["ssh-keygen", "-Y", *map(str, arguments)], input=data, capture_output=True, check=False)
    except FileNotFoundError:
        remedy = "install OpenSSH 8.2 or later (`apt install openssh-client`)"
        raise ConfigError(f"signatures need ssh-keygen, which is not on this machine: {remedy}") from None
