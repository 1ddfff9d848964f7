"""What this machine offers: cores, devices, memory."""

import contextlib
import os
import platform
import resource
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

_RATE_REPEATS = 9
_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CPU_INFO = Path("/proc/cpuinfo")
_MATRIX_FLAGS = {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile", "asimd", "bf16", "sve"}
"""What decides how fast a processor multiplies matrices, as Linux names it."""


def usable_cores() -> int:
    """Cores this process may use: its affinity, bounded by the container's CPU quota (cgroup v2 `cpu.max`)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota_cores(_CGROUP_QUOTA) or cores))


def _quota_cores(cpu_max: Path) -> int | None:
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
        return max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        return None


def set_threads() -> int:
    """Give torch the usable cores, unless OMP_NUM_THREADS says otherwise; return the number of threads."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(usable_cores())
    return torch.get_num_threads()


def processor() -> dict[str, str]:
    """The processor's name and what matters of its instruction sets: what a measured speed depends on."""
    import torch

    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            found.setdefault(name.strip().lower(), value.strip())
    flags = _MATRIX_FLAGS.intersection(found.get("flags", found.get("features", "")).split())
    return {
        "name": found.get("model name") or platform.processor() or platform.machine(),
        "instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *sorted(flags)]),
    }


def choose_device(name: str) -> str:
    """`auto` is CUDA if there is one, then MPS, then the CPU.

    Raises:
        UsageError: the device that was asked for is not there.
    """
    import torch

    from ticket_etl.errors import UsageError

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, there in available.items() if there)
    if not available[name]:
        raise UsageError(f"--device {name} is not available on this machine; use --device cpu or auto")
    return name


def matrix_rate(outputs: int, inputs: int, *, tokens: int = 1024, dtype: str = "float32", device: str = "cpu") -> float:
    """Floating-point operations per second of a product with a weight matrix of this shape: a median of a few."""
    import torch

    left = torch.randn(tokens, inputs, device=device).to(getattr(torch, dtype))
    right = torch.randn(outputs, inputs, device=device).to(getattr(torch, dtype))
    seconds = []
    with torch.inference_mode():
        for _ in range(_RATE_REPEATS):
            start = time.monotonic()
            torch.nn.functional.linear(left, right)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.monotonic() - start)
    return 2.0 * tokens * outputs * inputs / statistics.median(seconds)


def peak_memory_bytes() -> int:
    """The largest resident memory this process has had."""
    with contextlib.suppress(OSError):  # Linux: unlike ru_maxrss, not inherited from the parent process
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def versions() -> dict[str, str]:
    """Versions of everything that can change a score."""
    packages = {name: version(name) for name in ("torch", "transformers", "tokenizers", "pyarrow", "numpy")}
    return {"python": platform.python_version()} | packages
