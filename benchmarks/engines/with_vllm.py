"""vLLM's CPU build: prefix caching, continuous batching, compiled; decoding allowed the labels' first tokens only.

    with_vllm.py TASK float32|bfloat16

Blocks of 32 tokens: a prefix is shared in whole blocks, and the default of 128 would share less of it.
"""

import ctypes.util
import os
import sys
from pathlib import Path
from typing import Any

from serving import Engine, Task, Tickets, serve

_BLOCK_TOKENS = 32
_STEP_TOKENS = 2048


class VLLM(Engine):
    """vLLM's engine in this process, so that it rests where it is not asked."""

    def __init__(self, task: Task, dtype: str) -> None:
        import vllm

        self._task = task
        longest = max(map(len, task.tickets)) + len(task.prefix) + len(task.suffix)
        self._engine: Any = vllm.LLM(
            task.model,
            dtype=dtype,
            max_model_len=longest + 1,
            enable_prefix_caching=True,
            block_size=_BLOCK_TOKENS,
            max_num_batched_tokens=_STEP_TOKENS,
        )
        self._one_label: Any = vllm.SamplingParams(
            max_tokens=1, temperature=0, allowed_token_ids=task.labels, detokenize=False
        )
        self._places = {token: place for place, token in enumerate(task.labels)}
        self._cached = 0.0
        self.version = vllm.__version__
        preloaded = [Path(name).name for name in os.environ["LD_PRELOAD"].split(":") if name]
        self.settings = (
            f"compiled, blocks of {_BLOCK_TOKENS}, {_STEP_TOKENS} tokens a step"
            f", preloaded: {', '.join(preloaded) or 'nothing'}"
        )

    def prepare(self) -> None:
        """Forget the tickets of the last pass, and compute the prefix, as the other engines have done."""
        self._engine.reset_prefix_cache()
        self._generate([[]])

    def score(self, tickets: Tickets) -> list[int]:
        """See `Engine.score`."""
        outputs = self._generate(tickets)
        self._cached = sum(output.num_cached_tokens or 0 for output in outputs) / len(outputs)
        return [self._places[output.outputs[0].token_ids[0]] for output in outputs]

    def _generate(self, tickets: Tickets) -> list:
        prompts = [{"prompt_token_ids": self._task.prefix + ticket + self._task.suffix} for ticket in tickets]
        return self._engine.generate(prompts, self._one_label, use_tqdm=False)

    def facts(self) -> dict[str, Any]:
        """How much of the prefix was shared."""
        shared = f"{self._cached:.0f} of {len(self._task.prefix)} prefix tokens shared"
        return {"note": shared, "cached_tokens_per_ticket": self._cached}


def _start_as_documented(task: Task) -> None:
    """Start this process again with what vLLM's documentation wants set and preloaded before a CPU run."""
    if "VLLM_CPU_KVCACHE_SPACE" in os.environ:
        return
    openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
    libraries = [ctypes.util.find_library("tcmalloc_minimal"), str(openmp) if openmp.exists() else None]
    settings = {
        "LD_PRELOAD": ":".join(filter(None, libraries)),
        "KMP_BLOCKTIME": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{task.threads - 1}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCHINDUCTOR_CACHE_DIR": str(Path(task.folder) / "vllm-cache" / "inductor"),
        "VLLM_CACHE_ROOT": str(Path(task.folder) / "vllm-cache"),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | settings)


if __name__ == "__main__":
    _start_as_documented(Task.read(sys.argv[1]))
    serve(VLLM)
