"""`make bench-idle`: CPU time and memory of the local cluster while nothing asks anything of it.

Run it on a cluster that `make cluster-up` started, on a machine without other work. Without one its ratios are null.
"""

import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import psutil
from common import Parser, write_report
from deploy.local.state import Cluster, load, state_folder
from ratios import RATIOS


def label(process: psutil.Process) -> str:
    """Return what a process is: its title for Ray's workers, else its program."""
    words = process.cmdline()
    if words and words[0].startswith(("ray::", "VLLM::")):
        return words[0].split("(")[0].strip()
    scripts = [Path(word).name for word in words if word.endswith(".py")]
    return scripts[0] if scripts else process.name()


def cpu_s(cluster: Cluster) -> dict[tuple[str, int], float]:
    """Return the CPU seconds of every process of the cluster so far."""
    seconds = {}
    for process in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[label(process), process.pid] = times.user + times.system
    return seconds


def memory_gb(cluster: Cluster) -> dict[str, float]:
    """Return proportional set sizes by kind of process."""
    sizes: Counter[str] = Counter()
    for process in cluster.processes():
        with suppress(psutil.NoSuchProcess):
            sizes[label(process)] += process.memory_full_info().pss
    return {name: size / 1e9 for name, size in sizes.most_common()}


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="length of the measurement")
    parser.add_argument("--settle-s", type=float, default=30, help="pause before it, after which a start has ended")
    args = parser.options(seconds=2, settle_s=0)
    cluster = load(state_folder())
    if cluster is None or not cluster.runs():
        reason = "no local cluster runs: start one with `make cluster-up`"
        print(reason)
        write_report("idle", args, dict.fromkeys(RATIOS["idle"]), {"reason": reason})
        return
    time.sleep(args.settle_s)
    before, began = cpu_s(cluster), time.monotonic()
    time.sleep(args.seconds)
    after, elapsed_s = cpu_s(cluster), time.monotonic() - began
    shares = defaultdict[str, float](float)
    for (name, pid), total in after.items():
        shares[name] += (total - before.get((name, pid), total)) / elapsed_s
    memory = memory_gb(cluster)
    cores, gb = sum(shares.values()), sum(memory.values())
    figures = {
        "seconds": elapsed_s,
        "cores_by_process": dict(sorted(shares.items(), key=lambda share: -share[1])),
        "memory_gb_by_process": memory,
        "processes": len(after),
    }
    write_report("idle", args, {"idle.cores": cores, "idle.memory_gb": gb}, figures)


if __name__ == "__main__":
    main()
