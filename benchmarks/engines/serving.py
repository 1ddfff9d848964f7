"""The engine's side of `peers.py`: what is to be scored, and the conversation with the driver.

    driver -> engine    argv: task file, then the engine's own arguments; standard input: a line for each pass
    engine -> driver    standard output: a JSON object when it is ready, and one after each pass

Between two passes an engine waits for its next line and uses no processor. Only the standard library is needed here,
since some engines live in environments without the project.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_WARM_UP_TICKETS = 8

Tickets = list[list[int]]


@dataclass(frozen=True)
class Task:
    """The same work for every engine, in token ids: a prompt is prefix + ticket + suffix.

    model: folder in Hugging Face format.
    revision: of the model; names what an engine makes of it.
    labels: the first token of each label, all different; the label is the most probable of them at the last position.
    threads: threads an engine may use.
    folder: where engines keep what they convert and compile.
    options: label file, model and seed as our own engine takes them.
    """

    model: str
    revision: str
    prefix: list[int]
    suffix: list[int]
    tickets: Tickets
    labels: list[int]
    threads: int
    folder: str
    options: dict[str, Any]

    def write(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> "Task":
        """Load what `write` saved."""
        return cls(**json.loads(Path(path).read_text(encoding="utf-8")))

    def label_of(self, logits: list[float]) -> int:
        """The most probable label, by the logits of the labels' tokens; the first one listed wins a tie."""
        return max(range(len(logits)), key=logits.__getitem__)


class Engine:
    """A loaded model that labels tickets; subclasses load it in their constructor, from the task and their arguments.

    version: of the library.
    settings: what a reader must know about how it was run.
    """

    version = ""
    settings = ""

    def prepare(self) -> None:
        """Get ready for a pass, untimed: nothing of the last one may help, but the prefix may be computed."""

    def score(self, tickets: Tickets) -> list[int]:
        """The place of each ticket's label in the label file."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """What else is worth telling about the last pass."""
        return {}


def serve(make: Callable[..., Engine]) -> None:
    """Answer the driver until it closes standard input."""
    # Libraries print to standard output too; it is the driver's alone, and theirs goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    task = Task.read(sys.argv[1])
    try:
        engine = make(task, *sys.argv[2:])
    except ImportError as error:
        say(missing=str(error))
        return
    engine.prepare()
    engine.score(sorted(task.tickets, key=len)[:_WARM_UP_TICKETS])
    say(version=engine.version, settings=engine.settings)
    waiting, used = time.perf_counter(), time.process_time()
    for _ in sys.stdin:
        idle = (time.process_time() - used) / (time.perf_counter() - waiting)
        engine.prepare()
        start = time.perf_counter()
        labels = engine.score(task.tickets)
        seconds = time.perf_counter() - start
        say(seconds=seconds, labels=labels, idle_cores=idle, **engine.facts())
        waiting, used = time.perf_counter(), time.process_time()
