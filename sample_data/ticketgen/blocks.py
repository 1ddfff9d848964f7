"""Pasted material: stack traces, logs, JSON bodies, tables; each function fills about `budget` tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

from ticketgen.facts import Facts
from ticketgen.grammar import load, rough_tokens

Block = Callable[[Facts, int], list[str]]

_WORDS = ("stock", "sync", "delivery", "article", "price", "label", "supplier", "count", "export", "import", "session")
_VERBS = ("load", "merge", "flush", "apply", "parse", "render", "commit", "fetch", "build", "resolve", "validate")


def _fill(budget: int, line: Callable[[], str], head: list[str] | None = None) -> list[str]:
    """Collect lines until the budget is used up; at least two."""
    lines = list(head or [])
    spent = sum(rough_tokens(text) for text in lines)
    while spent < budget or len(lines) < 2:
        text = line()
        lines.append(text)
        spent += rough_tokens(text) + 1
    return lines


def _word(f: Facts) -> str:
    return f.rng.choice(_WORDS)


def _verb(f: Facts) -> str:
    return f.rng.choice(_VERBS)


def python_trace(f: Facts, budget: int) -> list[str]:
    def frame() -> str:
        function = f"{_verb(f)}_{_word(f)}"
        code = f.rng.choice(("return self._{}({}_id)", "row = {}(row, strict=True)", "for {1} in {0}(batch):"))
        path = f"/srv/quillfern/{_word(f)}/{f.rng.choice(('worker', 'models', 'tasks', 'views'))}.py"
        return f'  File "{path}", line {f.rng.randint(12, 940)}, in {function}\n    {code.format(_verb(f), _word(f))}'

    lines = _fill(budget - 20, frame, ["Traceback (most recent call last):"])
    error = f.rng.choice(
        ("KeyError: '{}_id'", "ValueError: invalid {} in row {}", "TimeoutError: {} took longer than {}s")
    )
    return [*lines, error.format(_word(f), f("big"))]


def java_trace(f: Facts, budget: int) -> list[str]:
    def frame() -> str:
        name = _word(f).capitalize()
        kind = f.rng.choice(("Service", "Repository", "Controller", "Mapper", "Job"))
        return f"\tat example.quillfern.{_word(f)}.{name}{kind}.{_verb(f)}({name}{kind}.java:{f.rng.randint(20, 700)})"

    head = f"java.lang.{f.rng.choice(('IllegalStateException', 'NullPointerException'))}: {f('err')}"
    lines = _fill(min(budget, 300), frame, [head])
    if budget > 330:
        cause = f"Caused by: java.net.SocketTimeoutException: Read timed out after {f('big')} ms"
        lines += _fill(budget - 330, frame, [cause])
    return [*lines, f"\t... {f.rng.randint(8, 60)} more"]


def js_trace(f: Facts, budget: int) -> list[str]:
    bundle = f"app.{f.rng.getrandbits(32):08x}.js"

    def frame() -> str:
        return f"    at {_verb(f)}{_word(f).capitalize()} ({bundle}:{f.rng.randint(1, 4)}:{f.rng.randint(900, 98000)})"

    head = f.rng.choice(
        ("TypeError: Cannot read properties of undefined (reading '{}')", "ReferenceError: {} is not defined")
    )
    return _fill(budget, frame, [f"Uncaught {head.format(_word(f))}"])


def _clock(f: Facts, fast: bool) -> Callable[[], str]:
    """Give a running time stamp that moves on with every call."""
    moment = [f.ago(0, 2)]

    def tick() -> str:
        moment[0] += timedelta(seconds=f.rng.randint(0, 9) if fast else f.rng.randint(600, 50000))
        return moment[0].strftime("%Y-%m-%d %H:%M:%S" if fast else "%d.%m. %H:%M")

    return tick


def app_log(f: Facts, budget: int) -> list[str]:
    tick = _clock(f, fast=True)

    def line() -> str:
        level = f.rng.choice(("INFO", "INFO", "DEBUG", "WARN", "ERROR"))
        text = f.rng.choice(
            (
                f"{_verb(f)} {_word(f)} batch={f.rng.randint(1, 99)} rows={f.rng.randint(1, 5000)}",
                f"retry {f.rng.randint(1, 5)}/5 for {_word(f)} after {f('err')}",
                f"GET /v2/{_word(f)}s?page={f.rng.randint(1, 80)} -> {f.rng.choice(('200', '200', f('errno')))}",
                f"queue {_word(f)} depth={f.rng.randint(0, 400)}",
                f"could not {_verb(f)} {_word(f)} {f.digits(6)}: {f('err')}",
            )
        )
        return f"{tick()} {level:<5} [{_word(f)}-{f.rng.randint(1, 8)}] {text}"

    return _fill(budget, line)


def device_log(f: Facts, budget: int) -> list[str]:
    tick = _clock(f, fast=True)

    def line() -> str:
        code = "".join(f.rng.choice("0123456789") for _ in range(13))
        event = (f"SCAN {code} qty=1", f"WIFI rssi=-{f.rng.randint(40, 88)}", f"BATT {f.rng.randint(5, 99)}%")
        rare = (
            f"SYNC queued={f.rng.randint(0, 60)}",
            "BOOT reason=watchdog",
            "WIFI lost",
            f"PRINT job {f.digits(3)} done",
        )
        return f"{tick()} {f('serial')} {f.rng.choice(event + rare)}"

    return _fill(budget, line, [f"firmware {f('version')}"])


def json_error(f: Facts, budget: int) -> list[str]:
    body: dict[str, object] = {
        "status": int(f("errno")),
        "error": f("err"),
        "request_id": f"{f.rng.getrandbits(64):016x}",
        "path": f"/v2/{_word(f)}s/{f.digits(5)}",
    }
    count = min(5, max(0, (budget - 50) // 30))
    if count:
        body["details"] = [
            {"field": f"{_word(f)}.{name}", "value": f.rng.randint(-5, 999), "message": f"invalid {_word(f)}"}
            for name in f.rng.sample(("quantity", "unit", "price", "id", "location", "batch"), count)
        ]
    lines = json.dumps(body, indent=2 if count or f.rng.random() < 0.4 else None, ensure_ascii=False).split("\n")
    left = budget - rough_tokens("\n".join(lines))
    return [*lines, "", *app_log(f, left)] if left > 60 else lines


def access_log(f: Facts, budget: int) -> list[str]:
    tick = _clock(f, fast=True)

    def line() -> str:
        user = f.rng.choice((f("email"), "admin", "-", f.email_of(*f.full_name().split(" ", 1))))
        action = f.rng.choice(
            ("login.failed", "login.ok", "export.customers", "user.created", "token.used", "session.opened")
        )
        address = f.rng.choice((f("ip"), f("ip"), "192.0.2.17"))
        return f"{tick()} {address} {user} {action} {'401' if 'failed' in action else '200'}"

    return _fill(budget, line)


def mail_headers(f: Facts, budget: int) -> list[str]:
    head = [
        f'From: "Quillfern Billing" <{f("bademail")}>',
        f"To: {f('email')}",
        "Subject: Your account will be suspended",
        f"Reply-To: {f.digits(7)}@inbox.example.org",
    ]
    return _fill(
        budget,
        lambda: (
            f"Received: from mx{f.rng.randint(1, 40)}.example.net ([{f('ip')}]) by mail.example.com with ESMTP"
            f" id {f.rng.getrandbits(40):010x}; {f.ago(1, 3):%Y-%m-%d %H:%M:%S} +0000"
        ),
        head,
    )


def tracking_events(f: Facts, budget: int) -> list[str]:
    tick = _clock(f, fast=False)
    events = (
        "Arrived at sorting centre",
        "Departed",
        "Delay - high volume",
        "Loaded into van",
        "Recipient absent",
        "Sorted",
    )
    budget = min(budget, 380)
    head = [f"{f('carrier')} {f('tracking')}", f"{tick()} Label created"]
    return _fill(budget, lambda: f"{tick()} {f.rng.choice(load('facts')['city'])} - {f.rng.choice(events)}", head)


def order_lines(f: Facts, budget: int) -> list[str]:
    items = list(load("facts")["item"])
    count = min(len(items), max(2, budget // 18))
    lines = []
    for item in f.rng.sample(items, count):
        quantity = f.rng.randint(1, 12)
        price = f.money(quantity * f.rng.randint(9, 480))
        lines.append(f"{quantity} x {item} ({f.rng.choice('ABCQ')}-{f.digits(4)})  {price}")
    return lines


def invoice_lines(f: Facts, budget: int) -> list[str]:
    what = (
        "{} plan, {} users",
        "Extra device licence {} x{}",
        "Support package {} ({} h)",
        "Label module, {} tier, {} seats",
    )

    moment = [f.created]

    def line() -> str:
        text = f.rng.choice(what).format(f.rng.choice(load("facts")["plan"]), f.rng.randint(2, 30))
        moment[0] -= timedelta(days=f.rng.randint(3, 32))
        return f"{f.day(moment[0])}  {text}  {f.money(f.rng.uniform(5, 600))}"

    return _fill(min(budget, 320), line, ["Bookings:"])


def user_list(f: Facts, budget: int) -> list[str]:
    lists = load("facts")

    def line() -> str:
        first, last = f.rng.choice(lists["first"]), f.rng.choice(lists["last"])
        state = f.rng.choice(("active", "active", "invited", "inactive", "locked"))
        role = f.rng.choice(("admin", "editor", "viewer", "scanner"))
        return f"{first} {last};{f.email_of(first, last, shared=False)};{role};{state}"

    return _fill(min(int(budget * 0.75), 300), line, ["name;email;role;state"])


def requirements(f: Facts, budget: int) -> list[str]:
    role = ("the shop manager", "a picker", "the bookkeeper", "head office", "a temp", "the buyer")
    want = (
        "filter the {0} list by {1}",
        "see who changed the {0} and when",
        "print the {1} next to the {0}",
        "get a warning before any {0} is deleted",
        "sort the {0} list by {1}",
        "undo the last change of the {0}",
        "copy the {0} together with its {1}",
        "lock the {0} while somebody else edits it",
        "leave a comment on each {0}",
    )
    nouns = ("article", "supplier", "delivery", "price", "label", "location", "order", "batch", "category")
    count = [0]

    def line() -> str:
        count[0] += 1
        must = f.rng.choice(("must be able to", "should be able to", "would like to", "needs to"))
        wish = f.rng.choice(want).format(*f.rng.sample(nouns, 2))
        return f"{count[0]}. {f.rng.choice(role)} {must} {wish}"

    return _fill(budget, line)


BY_LABEL: dict[str, tuple[Block, ...]] = {
    "billing": (invoice_lines,),
    "refund": (order_lines,),
    "shipping": (tracking_events, order_lines),
    "account": (user_list,),
    "bug": (python_trace, java_trace, js_trace, app_log, json_error),
    "security": (access_log,),
    "feature": (requirements,),
    "cancellation": (user_list, invoice_lines),
}
BY_SCENARIO: dict[str, tuple[Block, ...]] = {
    "double-scan": (device_log,),
    "battery": (device_log,),
    "label-cut": (device_log,),
    "webhook": (json_error, app_log),
    "sync-error": (python_trace, java_trace, app_log, json_error),
    "import": (python_trace, app_log, json_error),
    "crash-on-open": (java_trace, app_log),
    "button": (js_trace,),
    "slow": (js_trace, app_log),
    "phishing": (mail_headers,),
    "vuln-report": (json_error,),
    "leaked-key": (access_log,),
    "cancel-order": (order_lines,),
    "verify": (mail_headers,),
}
NO_BLOCK = {
    "questionnaire",
    "certificate",
    "malware",
    "profile",
    "ship-abroad",
    "delivery-time",
    "device-login",
    "verify",
}


def blocks_for(label: str, scenario: str) -> tuple[Block, ...]:
    """List the kinds of pasted material that fit a scenario."""
    return BY_SCENARIO.get(scenario) or BY_LABEL[label]
