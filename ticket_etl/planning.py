"""`ticket-etl plan` and `ticket-etl labels`: what a run would compute, from the tokenizer alone."""

from pathlib import Path

import polars as pl

from ticket_etl.config import ScoringConfig
from ticket_etl.labels import load_labels
from ticket_etl.machine import choose_device, matrix_rate, set_threads
from ticket_etl.models import ModelFolder, default_model, find_model, model_info
from ticket_etl.models.loading import load_shape, load_tokenizer
from ticket_etl.opening import bound_to, check_labels_differ, ticket_encoder
from ticket_etl.plan import padding_fraction
from ticket_etl.preflight import read_request
from ticket_etl.prompt import build_prompt
from ticket_etl.scoring import batch_limits
from ticket_etl.tally import Tally, quantile
from ticket_etl.workload import read_workload


def plan_input(config: ScoringConfig) -> str:
    """Lengths, duplicates, and every strategy's computed tokens and padding, window by window as the job would."""
    request = read_request(config)
    labels, folder = request.labels, request.folder
    info = model_info(config.model or default_model())
    encoder = ticket_encoder(config, labels, folder, load_tokenizer(folder), info.context_length)
    workload = read_workload(config)
    encoded = workload.encode(encoder)
    prompt = encoder.prompt
    if request.head is not None:
        request.head.check(bound_to(folder, prompt), labels.names)
        prompt = prompt.without_branches()
    limits = batch_limits(config, choose_device(config.device))
    tally = Tally(labels=len(labels.names))
    for start in range(0, len(encoded), config.window_tickets):
        tickets = [ticket.ids for ticket in encoded[start : start + config.window_tickets]]
        tally.count_alternatives(tickets, prompt, limits)
    seconds_per_token = least_seconds_per_token(folder, info.parameters)
    lengths = tally.token_lengths
    truncated = sum(ticket.truncated for ticket in encoded)
    table = pl.DataFrame(
        {
            "strategy": list(tally.plans),
            "real tokens": [count.real for count in tally.plans.values()],
            "computed tokens": [count.computed for count in tally.plans.values()],
            "least seconds": [round(count.computed * seconds_per_token, 1) for count in tally.plans.values()],
            "padding %": [round(100 * padding_fraction(c.real, c.computed), 1) for c in tally.plans.values()],
        }
    )
    head = [
        f"rows        {workload.num_rows:,} read, {len(encoded):,} distinct texts,"
        f" {truncated:,} over {encoder.max_ticket_tokens} tokens",
        f"tokens      median {quantile(lengths, 0.5)}, 90% {quantile(lengths, 0.9)}, 99% {quantile(lengths, 0.99)},"
        f" longest {quantile(lengths, 1.0)}; prefix {len(encoder.prompt.prefix)}, suffix {len(encoder.prompt.suffix)}",
        f"model       {folder.name} ({folder.revision[:12]}), tokenizer only",
    ]
    return "\n".join([*head, _show(table)])


def least_seconds_per_token(folder: ModelFolder, parameters: int) -> float:
    """What this machine's CPU needs for the matrix products of one token, if it did nothing else, in float32.

    Two operations for each parameter besides the embeddings, at the rate of the model's largest matrix.
    """
    shape = load_shape(folder)
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.ties_embeddings else 2)
    set_threads()
    return 2.0 * (parameters - embeddings) / matrix_rate(shape.intermediate, shape.hidden)


def describe_labels(path: Path, model: str | None) -> str:
    """The tokens of every label, how the label set branches, and what that costs; for encoders, the labels' texts.

    Raises:
        UsageError: the label set cannot be used; the message names the labels.
    """
    labels = load_labels(path)
    folder = find_model(model or default_model())
    if folder.kind == "encoder":
        config = ScoringConfig(input="", model=model)
        check_labels_differ(ticket_encoder(config, labels, folder, load_tokenizer(folder), None), labels)
        texts = pl.DataFrame({"label": labels.names, "compared by": ["; ".join(each.texts) for each in labels.labels]})
        return f"{len(labels.names)} labels, compared with each ticket by their vectors\n{_show(texts)}"
    tokenizer = load_tokenizer(folder)
    prompt = build_prompt(tokenizer, labels)
    trie = prompt.trie
    table = pl.DataFrame(
        {
            "label": labels.names,
            "tokens": [" ".join(repr(tokenizer.decode([token])) for token in ids[:-1]) for ids in prompt.sequences],
            "choices": [len(choices) for choices in trie.choices],
        }
    )
    cost = (
        "labels part at their first token: one read at the end of each ticket"
        if not trie.nodes
        else f"{len(trie.branches)} branches: {len(trie.nodes)} more tokens per ticket in the same forward pass"
    )
    return "\n".join(
        [
            f"{len(labels.names)} labels, prefix of {len(prompt.prefix)} tokens computed once,"
            f" suffix of {len(prompt.suffix)}",
            cost,
            _show(table),
        ]
    )


def _show(table: pl.DataFrame) -> str:
    with pl.Config(
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_rows=-1,
        tbl_formatting="ASCII_MARKDOWN",
        fmt_str_lengths=200,
        tbl_width_chars=200,
        thousands_separator=True,
    ):
        return str(table)
