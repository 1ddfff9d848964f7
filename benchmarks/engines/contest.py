"""The driver's side of `peers.py`: engines in processes of their own, one of which works at a time, and the results."""

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_HERE = Path(__file__).parent

REFERENCE, OURS = "reference", "ours-float32"


@dataclass(frozen=True)
class Entry:
    """One engine in one precision: the script that serves it with its arguments, and the environment it runs in."""

    title: str
    dtype: str
    script: str
    arguments: tuple[str, ...]
    environment: str = ""


ENTRIES = {
    REFERENCE: Entry("transformers, one ticket at a time", "float32", "plain_transformers.py", ("float32", "1")),
    "transformers-float32": Entry("transformers, batches", "float32", "plain_transformers.py", ("float32", "32")),
    "transformers-bfloat16": Entry("transformers, batches", "bfloat16", "plain_transformers.py", ("bfloat16", "32")),
    "ctranslate2-float32": Entry("CTranslate2", "float32", "with_ctranslate2.py", ("float32",), "ctranslate2"),
    "ctranslate2-int8": Entry("CTranslate2", "int8", "with_ctranslate2.py", ("int8",), "ctranslate2"),
    "vllm-float32": Entry("vLLM", "float32", "with_vllm.py", ("float32",), "vllm"),
    "vllm-bfloat16": Entry("vLLM", "bfloat16", "with_vllm.py", ("bfloat16",), "vllm"),
    OURS: Entry("ticket-etl", "float32", "ours.py", ("float32",)),
    "ours-bfloat16": Entry("ticket-etl, certified", "bfloat16", "ours.py", ("bfloat16",)),
}
"""All engines, in the order of the table."""


@dataclass
class Result:
    """What became of one engine.

    problem: why there are no figures, if there are none.
    seconds: of each round; labels: of the last.
    idle_cores: processor time over time while it waited, at the most.
    vs_ours: speed as a multiple of `OURS`.
    agreement: share of tickets with the reference's label.
    """

    title: str
    dtype: str
    version: str = ""
    settings: str = ""
    problem: str = ""
    seconds: list[float] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    idle_cores: float = 0.0
    tickets_per_second: float | None = None
    vs_ours: float | None = None
    agreement: float | None = None


class EngineError(Exception):
    """An engine is not installed, or has died; the message says what to do."""


class Contestant:
    """An engine in a process of its own; entering starts it, leaving ends it.

    Args:
        name: a key of `ENTRIES`.
        python: the interpreter of its environment.
        task_file: what `Task.write` wrote; logs go beside it.
        threads: how many it may use.
    """

    def __init__(self, name: str, python: Path, task_file: Path, threads: int) -> None:
        self._entry = ENTRIES[name]
        self.result = Result(self._entry.title, self._entry.dtype)
        self._log = task_file.with_name(f"{name}.log")
        if not python.exists():
            raise EngineError(f"not installed: there is no {python}; {self._recipe}")
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [python, _HERE / self._entry.script, task_file, *self._entry.arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def _recipe(self) -> str:
        where = f"requirements-{self._entry.environment}.txt" if self._entry.environment else "the Makefile"
        return f"{where} says how"

    def start(self) -> None:
        """Wait until it is ready.

        Raises:
            EngineError: it is not installed, or it does not start.
        """
        hello = self._hear()
        if "missing" in hello:
            raise EngineError(f"not installed: {hello['missing']}; {self._recipe}")
        self.result.version, self.result.settings = hello["version"], hello["settings"]

    def run(self) -> None:
        """One pass over all tickets.

        Raises:
            EngineError: it has died.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died while it waited; `_hear` says so
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        answer = self._hear()
        self.result.seconds.append(answer.pop("seconds"))
        self.result.labels = answer.pop("labels")
        self.result.idle_cores = max(self.result.idle_cores, answer.pop("idle_cores"))
        self.result.facts = answer

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"failed; its last words are in {self._log}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "Contestant":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()


def compete(
    names: list[str], pythons: dict[str, Path], task_file: Path, threads: int, rounds: int
) -> dict[str, Result]:
    """Load the engines one after the other, then let them take turns; one that fails drops out."""
    results: dict[str, Result] = {}
    running: dict[str, Contestant] = {}
    with ExitStack() as stack:
        for name in names:
            began = time.monotonic()
            try:
                contestant = Contestant(name, pythons[ENTRIES[name].environment], task_file, threads)
                stack.enter_context(contestant).start()
            except EngineError as error:
                results[name] = _out(name, error)
                continue
            running[name], results[name] = contestant, contestant.result
            _tell(f"{name}: ready after {time.monotonic() - began:.0f} s")
        for number in range(1, rounds + 1):
            for name in list(running):
                try:
                    running[name].run()
                except EngineError as error:
                    results[name] = _out(name, error)
                    del running[name]
                    continue
                _tell(f"{name}: round {number} of {rounds}, {results[name].seconds[-1]:.1f} s")
    return results


def _out(name: str, error: EngineError) -> Result:
    _tell(f"{name}: {error}")
    return Result(ENTRIES[name].title, ENTRIES[name].dtype, problem=str(error))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def judge(results: dict[str, Result], tickets: int, tie_margin: float) -> None:
    """Fill in speeds, and agreement with the reference, where a tie agrees with either label."""
    reference, ours = results[REFERENCE], results.get(OURS)
    tied = [margin <= tie_margin for margin in reference.facts.get("margins", ())]
    for result in results.values():
        result.facts.pop("margins", None)
        if result.seconds:
            result.tickets_per_second = tickets / statistics.median(result.seconds)
        if result.labels and reference.labels:
            pairs = zip(result.labels, reference.labels, tied, strict=True)
            result.agreement = sum(label == expected or tie for label, expected, tie in pairs) / tickets
    for result in results.values():
        if result.tickets_per_second and ours is not None and ours.tickets_per_second:
            result.vs_ours = result.tickets_per_second / ours.tickets_per_second
