"""CTranslate2: the prefix as its cached static prompt, one forward pass over the rest, the labels' logits read.

    with_ctranslate2.py TASK float32|int8

The model is converted once and kept. Only tickets of one length share a batch: of unequal ones CTranslate2 forwards the
shortest length at once and then goes on token by token, the output matrix included.
"""

import json
import os
import shutil
from itertools import groupby
from pathlib import Path

from serving import Engine, Task, Tickets, serve

_BATCH_TOKENS = 2048


class CTranslate2(Engine):
    """A converted model behind a generator that generates one token."""

    def __init__(self, task: Task, compute_type: str) -> None:
        import ctranslate2
        import numpy

        folder = _converted(task)
        self._array = numpy.asarray
        self._task = task
        # Batches of a ticket or two are quicker side by side, a thread each, than one after the other on all threads.
        self._generator = ctranslate2.Generator(
            str(folder), compute_type=compute_type, inter_threads=task.threads, intra_threads=1
        )
        self._tokens: list[str] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._prefix = [self._tokens[token] for token in task.prefix]
        self.version = ctranslate2.__version__
        self.settings = f"static prompt, batches of equal length, inter_threads={task.threads}, intra_threads=1"

    def score(self, tickets: Tickets) -> list[int]:
        """See `Engine.score`."""
        order = sorted(range(len(tickets)), key=lambda index: -len(tickets[index]))
        batches = []
        for length, group in groupby(order, key=lambda index: len(tickets[index])):
            alike = list(group)
            size = max(1, _BATCH_TOKENS // (length + len(self._task.suffix)))
            batches += [alike[start : start + size] for start in range(0, len(alike), size)]
        pending = [(batch, self._submit([tickets[index] for index in batch])) for batch in batches]
        labels = [0] * len(tickets)
        for batch, results in pending:
            for index, result in zip(batch, results, strict=True):
                logits = self._array(result.result().logits[0][0])
                labels[index] = self._task.label_of(logits[self._task.labels].tolist())
        return labels

    def _submit(self, tickets: Tickets) -> list:
        prompts = [[self._tokens[token] for token in ticket + self._task.suffix] for ticket in tickets]
        return self._generator.generate_batch(
            prompts,
            static_prompt=self._prefix,
            include_prompt_in_result=False,
            max_length=1,
            return_logits_vocab=True,
            asynchronous=True,
        )


def _converted(task: Task) -> Path:
    """The model in CTranslate2's format, made if it is not there."""
    folder = Path(task.folder) / f"ctranslate2-{task.revision}"
    if not folder.is_dir():
        from ctranslate2.converters import TransformersConverter

        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            TransformersConverter(task.model).convert(str(unfinished))
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


if __name__ == "__main__":
    serve(CTranslate2)
