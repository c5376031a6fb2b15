"""Files of allowed signers as people keep them for git; what is right is what OpenSSH says."""

import subprocess
from pathlib import Path

import pytest

from poolbench.errors import ConfigError, InputError
from poolbench_driver.sharing.signatures import check, sign

ADA = "ada@example.org"
#: Files, with whose signature it is and with what the message says where OpenSSH refuses the key for `ADA`.
FILES = {
    "the owner alone": ("ada@example.org {ada}\n", ADA),
    "a comment, an empty line, a note behind the key": ("# group\n\nada@example.org {ada} laptop\n", ADA),
    "two owners": ("ada@example.org,ada@uni.example {ada}\n", ADA),
    "a pattern": ("*@example.org {ada}\n", "*@example.org"),
    "a pattern with an exception": ('"!bob@example.org,*@example.org" {ada}\n', "*@example.org"),
    "lines of Windows": ("bob@example.org {bob}\r\nada@example.org {ada}\r\n", ADA),
    "for git first": ('ada@home.example namespaces="git" {ada}\nada@example.org {ada}\n', ADA),
    "for git last": ('ada@example.org {ada}\nada@home.example namespaces="git" {ada}\n', ADA),
    "for both": ('ada@example.org namespaces="git,poolbench" {ada}\n', ADA),
    "expired, and a new one": ('old@example.org valid-before="20200101" {ada}\nada@example.org {ada}\n', ADA),
    "since": ('ada@example.org valid-after="20200101" {ada}\n', ADA),
    "a damaged line before": ("ada@example.org ssh-ed25519 AAAA\nada@example.org {ada}", ADA),
    "for git alone": (
        '\nada@example.org namespaces="git" {ada}\n',
        "(line 2: key is not permitted for use in",
    ),
    "expired": ('ada@example.org valid-before="20200101" {ada}\n', "(line 1: key has expired"),
    "another key": ("bob@example.org {bob}\n", "permits its key SHA256:"),
    "a public key without owner": ("{ada} ada@example.org\n", "permits its key SHA256:"),
    "an authority, and the key without a certificate": ("*@example.org cert-authority {ada}\n", "permits its key"),
    "empty": ("", "permits its key"),
}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("signed")
    for name in ("ada", "bob"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", root / name], check=True)
    (root / "file").write_text("signed")
    sign(root / "file", root / "ada")
    return root


@pytest.mark.parametrize("name", FILES)
def test_signers_are_those_of_openssh(name: str, signed: Path, tmp_path: Path) -> None:
    text, says = FILES[name]
    keys = {owner: " ".join((signed / f"{owner}.pub").read_text().split()[:2]) for owner in ("ada", "bob")}
    signers, file, signature = tmp_path / "signers", signed / "file", signed / "file.sig"
    signers.write_bytes(text.format(**keys).encode())
    command = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", ADA, "-n", "poolbench", "-s", signature]
    is_good = subprocess.run(command, input=file.read_bytes(), capture_output=True, check=False).returncode == 0
    if is_good:
        assert check(file, signature, signers) == f"signed by {says}"
    else:
        with pytest.raises(InputError) as refused:
            check(file, signature, signers)
        assert says in str(refused.value) and str(signers) in str(refused.value)
    (tmp_path / "other").write_text("of another file")
    with pytest.raises(InputError, match="not a signature of this bundle"):
        check(tmp_path / "other", signature, signers)


def test_signers_that_cannot_be_read_are_an_error(signed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none cannot be read"):
        check(signed / "file", signed / "file.sig", tmp_path / "none")


def test_a_certificate_of_an_authority_signs(signed: Path, tmp_path: Path) -> None:
    for name in ("authority", "eve"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name], check=True)
    certify = [
        "ssh-keygen",
        "-q",
        "-s",
        tmp_path / "authority",
        "-I",
        "1",
        "-n",
        "eve@example.org",
        tmp_path / "eve.pub",
    ]
    subprocess.run(certify, check=True)
    file = tmp_path / "file"
    file.write_text("signed")
    sign(file, tmp_path / "eve-cert.pub")
    signers = tmp_path / "signers"
    signers.write_text(f"*@example.org cert-authority {(tmp_path / 'authority.pub').read_text()}")
    assert check(file, tmp_path / "file.sig", signers) == "signed by eve@example.org"
