"""The check of this machine: each gap is found where its condition is real, with the remedy for the distribution."""

import ast
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.install import find_python
from tests.pages import REPOSITORY

from poolbench.contracts.wire import METRICS_PORT
from poolbench.machine import preflight
from poolbench.machine.preflight import PORTS, SKIP, Gap, find_gaps, memory_bytes, print_gaps
from poolbench.settings import PlaceSettings

#: By distribution: the lines of `/etc/os-release`, and the command that installs a compiler and libnuma.
DISTRIBUTIONS = {
    "debian": ('PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\n', "apt-get install g++", "apt-get install libnuma1"),
    "ubuntu": ("ID=ubuntu\nID_LIKE=debian\n", "apt-get install g++", "apt-get install libnuma1"),
    "mint": ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', "apt-get install g++", "apt-get install libnuma1"),
    "fedora": ("ID=fedora\n", "dnf install gcc-c++", "dnf install numactl-libs"),
    "rocky": ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install gcc-c++", "dnf install numactl-libs"),
    "arch": ("ID=arch\n", "pacman -S gcc", "pacman -S numactl"),
    "suse": ('ID="opensuse-leap"\nID_LIKE="suse opensuse"\n', "zypper install gcc-c++", "zypper install libnuma1"),
    "other": ("ID=other\n", "install a C++ compiler (g++)", "install the library libnuma.so.1 of numactl"),
}
_FIND = """
import json, sys
from pathlib import Path
from poolbench.machine.preflight import find_gaps
print(json.dumps(find_gaps("cpu", Path(sys.argv[1]), **json.loads(sys.argv[2]))))
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("POOLBENCH_") or name in ("CXX", "CC")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a folder for `/etc`, `/proc` and `/sys`, without any file in it."""
    folder = tmp_path / "system"
    (folder / "etc").mkdir(parents=True)
    return folder


def by_check(gaps: list[Gap]) -> dict[str, Gap]:
    return {gap.check: gap for gap in gaps}


def in_namespace(prepare: str, root: Path, *flags: str, **options: Any) -> dict[str, Gap]:
    """Return the gaps of a process in a mount namespace of its own, after the commands of a shell."""
    if subprocess.run(["unshare", "--mount", *flags, "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces cannot be created here")
    command = ["unshare", "--mount", *flags, "sh", "-ec", f'{prepare}\nexec "$@"', "sh"]
    looked = [sys.executable, "-c", _FIND, str(root), json.dumps(options)]
    found = subprocess.run([*command, *looked], check=True, capture_output=True, text=True)
    return by_check([Gap(*each) for each in json.loads(found.stdout)])


def without(module: str, folder: Path) -> Path:
    """Copy the interpreter of this virtual environment, without one of its modules and without headers."""
    base = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib"))
    copied = folder / library.relative_to(base)
    copied.mkdir(parents=True)
    for each in library.iterdir():
        if each.name != module:
            (copied / each.name).symlink_to(each)
    (folder / "bin").mkdir()
    return Path(shutil.copy(Path(sys.executable).resolve(), folder / "bin" / "python"))


def old_python(*versions: str) -> Path:
    """Return an interpreter of one of these versions."""
    found = next(filter(None, (find_python(f"python{version}") for version in versions)), None)
    return Path(found or pytest.skip(f"needs a Python {' or '.join(versions)}"))


def test_a_machine_that_runs_these_tests_lacks_nothing() -> None:
    assert not [gap for gap in find_gaps("cpu", REPOSITORY, download_bytes=0, installed_bytes=0) if gap.blocking]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_without_compiler_and_library_both_are_named_with_their_packages(
    name: str, system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, compiler, libnuma = DISTRIBUTIONS[name]
    (system / "etc" / "os-release").write_text(release)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = by_check(find_gaps("cpu", None, system=system))
    sudo = "" if os.geteuid() == 0 or name == "other" else "sudo "
    assert found["compiler"].remedy == sudo + compiler
    assert found["compiler"].message.startswith("g++ is not on PATH") and found["compiler"].blocking
    read = preflight._os_release(system)
    assert preflight._install("libnuma", read) == sudo + libnuma
    found = by_check(find_gaps("gpu", None, system=system))
    assert found["compiler"].message.startswith("gcc or clang is not on PATH")


def test_a_compiler_that_the_environment_names_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = by_check(find_gaps("cpu", None))["compiler"]
    assert found.message.startswith("CXX=no-such-compiler is not on PATH") and found.remedy == "unset CXX"


def test_a_compiler_of_before_2020_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "g++"
    said = "g++: error: unrecognized command line option '-std=c++20'; did you mean '-std=c++2a'?"
    old.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = by_check(find_gaps("cpu", None))["compiler"]
    assert said in found.message and "C++20" in found.message and found.blocking


def test_a_missing_libnuma_is_found(tmp_path: Path) -> None:
    listed = subprocess.run(["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True).stdout
    libraries = [line.split("=> ")[1] for line in listed.splitlines() if "libnuma.so.1" in line]
    hide = "\n".join(f"mount --bind /dev/null {library}" for library in libraries)
    found = in_namespace(hide, tmp_path)["libnuma"]
    assert found.blocking and "libnuma" in found.message


def test_a_python_without_ensurepip_and_headers_is_found_unless_there_is_an_environment(tmp_path: Path) -> None:
    python = without("ensurepip", tmp_path / "copy")
    found = by_check(find_gaps("cpu", tmp_path, python=str(python)))
    environment, headers = found["virtual environment"], found["Python headers"]
    assert "cannot create .venv" in environment.message and "ensurepip" in environment.message and environment.blocking
    assert "PYTHON=" in environment.remedy
    assert "Python.h" in headers.message and headers.blocking
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    assert not {"virtual environment", "Python headers"} & by_check(find_gaps("cpu", tmp_path)).keys()


def test_an_environment_of_an_old_python_is_found(tmp_path: Path) -> None:
    python = old_python("3.9", "3.10", "3.8")
    subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    found = by_check(find_gaps("cpu", tmp_path, python=str(python)))
    assert "has Python 3." in found["virtual environment"].message
    assert found["virtual environment"].remedy == f"rm -r {tmp_path / '.venv'} && make install"
    assert "is Python 3." in found["Python"].message, "the new one would have the same gap"


def test_an_environment_whose_python_has_gone_is_found(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    for link in (tmp_path / ".venv" / "bin").glob("python*"):
        link.unlink()
    found = by_check(find_gaps("cpu", tmp_path))["virtual environment"]
    assert "does not start" in found.message and found.remedy.startswith("rm -r ")


def test_an_old_python_cannot_create_the_environment_and_another_is_named(
    system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = old_python("3.8", "3.9", "3.10")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (system / "etc" / "os-release").write_text(DISTRIBUTIONS["fedora"][0])
    found = by_check(find_gaps("cpu", tmp_path, python=str(python), system=system))["Python"]
    assert f"{python} is Python 3." in found.message and "3.11 to 3.14 are supported" in found.message
    assert found.blocking and found.remedy.removeprefix("sudo ") == "dnf install python3.11 python3.11-devel"
    (tmp_path / "bin" / "python3.12").symlink_to(sys.executable)
    found = by_check(find_gaps("cpu", tmp_path, python=str(python), system=system))["Python"]
    assert found.remedy == "make install PYTHON=python3.12"
    assert "Python" not in by_check(find_gaps("cpu", tmp_path, python=None))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    command = ["setarch", "linux32", sys.executable, "-c", _FIND, str(tmp_path), "{}"]
    if platform.machine() != "x86_64" or subprocess.run([*command[:2], "true"], check=False).returncode:
        pytest.skip("setarch cannot change the architecture here")
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    found = by_check([Gap(*each) for each in json.loads(said.stdout)])["architecture"]
    assert found.message == "this is i686; the packages exist for x86_64 and aarch64"


def test_another_operating_system_is_all_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    (found,) = find_gaps("cpu", REPOSITORY)
    assert found.check == "operating system" and "runs on Linux" in found.message


def _no_such_name(name: str) -> str:
    raise ValueError("unrecognized configuration name")


@pytest.mark.parametrize(
    ("confstr", "said"),
    [
        (lambda name: "glibc 2.28", "has glibc 2.28; the packages need 2.31 or later"),
        (_no_such_name, "has no glibc (musl, for example)"),
    ],
)
def test_old_and_other_c_libraries_are_refused(
    confstr: Any, said: str, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `os.confstr` does on musl is copied here: Python fails in the same way."""
    (system / "etc" / "os-release").write_text('PRETTY_NAME="Alpine Linux v3.23"\nID=alpine\n')
    monkeypatch.setattr(os, "confstr", confstr)
    found = by_check(find_gaps("cpu", None, system=system))["C library"]
    assert found.message.startswith("Alpine Linux v3.23") and said in found.message and found.blocking


def test_a_processor_without_avx2_is_found(system: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("concerns x86-64")
    (system / "proc").mkdir()
    (system / "proc" / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu sse4_2 avx\n")
    assert "AVX2" in by_check(find_gaps("cpu", None, system=system))["processor"].message
    assert "processor" not in by_check(find_gaps("gpu", None, system=system))


@pytest.mark.parametrize(
    ("group", "file"),
    [
        ("0::/user.slice/app.scope", "sys/fs/cgroup/user.slice/app.scope/memory.max"),
        ("0::/user.slice/app.scope", "sys/fs/cgroup/user.slice/memory.max"),
        ("0::/", "sys/fs/cgroup/memory.max"),
        ("4:cpu,memory:/docker/1", "sys/fs/cgroup/memory/memory.limit_in_bytes"),
        ("4:memory:/docker/1", "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes"),
    ],
)
def test_the_memory_of_a_container_counts(group: str, file: str, system: Path) -> None:
    (system / "proc" / "self").mkdir(parents=True)
    (system / "proc" / "self" / "cgroup").write_text(f"1:name=systemd:/\n{group}\n")
    (system / file).parent.mkdir(parents=True)
    (system / file).write_text("max\n")
    assert memory_bytes(system) == memory_bytes(Path("/no/such/folder"))
    (system / file).write_text("2000000000\n")
    assert memory_bytes(system) == 2_000_000_000
    found = by_check(find_gaps("cpu", None, system=system))["memory"]
    assert found.message.startswith("2.0 GB") and "12.0 GB" in found.message and not found.blocking


def test_a_full_disk_is_found(tmp_path: Path) -> None:
    prepare = f"mount -t tmpfs -o size=1m none {tmp_path}\nexport UV_CACHE_DIR={tmp_path}/cache/uv"
    found = in_namespace(prepare, tmp_path, download_bytes=2 * 10**9, installed_bytes=10**9)["disk"]
    assert found.message == f"0.0 GB are free in {tmp_path}, and the installation needs up to 3.0 GB"
    assert found.blocking and "UV_CACHE_DIR" in found.remedy


def test_a_new_installation_over_an_old_one_may_need_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path))  # on the same file system
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "poolbench-installed").write_text("pins")
    found = by_check(find_gaps("cpu", tmp_path, installed_bytes=10**18))["disk"]
    assert not found.blocking and "needs up to 1000000001.3 GB" in found.message


def test_a_read_only_checkout_is_found(tmp_path: Path) -> None:
    prepare = f"mount --bind {tmp_path} {tmp_path}\nmount -o remount,bind,ro {tmp_path}"
    found = in_namespace(prepare, tmp_path)["checkout"]
    assert found.message == f"{tmp_path} is on a read-only file system" and found.blocking


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_checkout_of_another_user_and_a_port_of_root_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POOLBENCH_HTTP_PORT", "81")
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setuid(65534)
        gaps = preflight._port_gaps(None) + preflight._checkout_gaps(Path("/"))
        os.write(writer, json.dumps(gaps).encode())
        os._exit(0)
    os.wait()
    found = by_check([Gap(*each) for each in json.loads(os.read(reader, 1 << 16))])
    port, checkout = found["port of HTTP"], found["checkout"]
    assert port.message == "port 81 is open to root only, and POOLBENCH_HTTP_PORT names it"
    assert checkout.message == "/ cannot be written by user 65534" and checkout.remedy == "sudo chown -R 65534 /"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_found_and_its_variable_named(
    taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PORTS, "POOLBENCH_METRICS_PORT", (taken, "metrics"))
    usual = by_check(find_gaps("cpu", None))["port of metrics"]
    assert usual.message == f"port {taken} is taken; cluster-up uses a free port instead" and not usual.blocking
    assert "POOLBENCH_METRICS_PORT=" in usual.remedy
    monkeypatch.setenv("POOLBENCH_HTTP_PORT", str(taken))
    named = by_check(find_gaps("cpu", None))["port of HTTP"]
    assert named.message == f"port {taken} is taken, and POOLBENCH_HTTP_PORT names it" and named.blocking
    # The same port is not a gap if the cluster of this checkout has it, nor if the cluster runs elsewhere.
    monkeypatch.delenv("POOLBENCH_STATE")
    record = tmp_path / ".poolbench" / "cluster.json"
    record.parent.mkdir()
    addresses = {"http": f"http://127.0.0.1:{taken}", "metrics_port": taken}
    record.write_text(json.dumps({**addresses, "pid": os.getpid()}))
    assert not [gap for gap in find_gaps("cpu", tmp_path) if gap.check.startswith("port")]
    record.write_text(json.dumps({**addresses, "pid": 2**22 + 1}))
    assert by_check(find_gaps("cpu", tmp_path))["port of HTTP"].blocking
    monkeypatch.setenv("POOLBENCH_HTTP", "http://elsewhere:8000")
    assert not [gap for gap in find_gaps("cpu", tmp_path) if gap.check.startswith("port")]


def test_a_fault_of_a_check_stops_nothing(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "memory_bytes", lambda system: 1 // 0)
    found = by_check(find_gaps("cpu", None, system=system))["preflight"]
    assert "ZeroDivisionError" in found.message and not found.blocking


def test_errors_stop_and_warnings_do_not(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    error, warning = Gap("a", "it lacks", "install it"), Gap("b", "it is small", "buy more", blocking=False)
    assert not print_gaps([]) and not print_gaps([warning])
    assert print_gaps([error, warning])
    lines = capsys.readouterr().err.splitlines()[1:]
    assert lines[:2] == ["error: a: it lacks: install it", "warning: b: it is small: buy more"]
    assert lines[2] == "1 error to correct first; POOLBENCH_SKIP_PREFLIGHT=1 goes on in spite of them"
    assert not print_gaps([error], forced=True)
    monkeypatch.setenv(SKIP, "true")
    assert not print_gaps([error, error])
    assert "in spite of 2 errors" in capsys.readouterr().err


def test_names_and_numbers_are_those_of_the_settings() -> None:
    assert PlaceSettings.variable("skip_preflight") == SKIP
    assert [PlaceSettings.variable("http_port"), PlaceSettings.variable("metrics_port")] == list(PORTS)
    assert PORTS["POOLBENCH_METRICS_PORT"][0] == METRICS_PORT


def test_the_file_alone_runs_on_an_old_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processor time is limited here; the time for which it waits for an index has a limit of its own."""
    file = Path(preflight.__file__)
    ast.parse(file.read_text(), feature_version=(3, 8))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    command = [old_python("3.8", "3.9", "3.10"), file, "--profile", "cpu"]
    before = os.times()
    said = subprocess.run(command, check=False, capture_output=True, text=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1.5
    assert said.returncode == 1 and "error: compiler: g++ is not on PATH" in said.stderr
    assert "Traceback" not in said.stderr and SKIP in said.stderr
