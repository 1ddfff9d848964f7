"""transformers as most people call it: the whole prompt of each ticket, one at a time or in padded batches.

    plain_transformers.py TASK float32|bfloat16 TICKETS_A_BATCH

Nothing of this project takes part. One at a time in float32 is the reference that all others are held against.
"""

from typing import Any

from serving import Engine, Task, Tickets, serve


class PlainTransformers(Engine):
    """A plain model; batches are sorted by length and padded on the left, so that the last position is every row's."""

    def __init__(self, task: Task, dtype: str, batch: str) -> None:
        import torch
        import transformers

        torch.set_num_threads(task.threads)
        self._torch: Any = torch
        self._task = task
        self._batch = int(batch)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            task.model, dtype=getattr(torch, dtype), local_files_only=True
        ).eval()
        self._margins: list[float] = []
        self.version = f"{transformers.__version__}, torch {torch.__version__}"
        alone = self._batch == 1
        self.settings = "the reference" if alone else f"{batch} a batch, sorted by length, padded, with attention masks"

    def score(self, tickets: Tickets) -> list[int]:
        """See `Engine.score`."""
        order = sorted(range(len(tickets)), key=lambda index: -len(tickets[index]))
        labels, self._margins = [0] * len(tickets), [0.0] * len(tickets)
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            for index, logits in zip(chosen, self._label_logits([tickets[index] for index in chosen]), strict=True):
                labels[index] = self._task.label_of(logits)
                second, first = sorted(logits)[-2:]
                self._margins[index] = first - second
        return labels

    def _label_logits(self, tickets: Tickets) -> list[list[float]]:
        torch = self._torch
        prompts = [self._task.prefix + ticket + self._task.suffix for ticket in tickets]
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        how = {}
        if len(prompts) > 1:
            mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            how = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        with torch.inference_mode():
            logits = self._model(ids, logits_to_keep=1, use_cache=False, **how).logits
        rows: list[list[float]] = logits[:, -1, self._task.labels].float().tolist()
        return rows

    def facts(self) -> dict[str, Any]:
        """The log-odds of each label to its runner-up."""
        return {"margins": self._margins}


if __name__ == "__main__":
    serve(PlainTransformers)
