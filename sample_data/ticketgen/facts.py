"""The facts of one ticket: who writes, which order, which amount; each is drawn once and then stays."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random

from ticketgen.grammar import expand, load

CURRENCIES: dict[str, tuple[str, ...]] = {
    "en": ("€", "€", "$", "$", "£", "£", "CHF", "EUR", "USD", "CA$", "SEK", "₹"),
    "de": ("€", "€", "EUR", "CHF"),
    "fr": ("€", "€", "CHF"),
    "es": ("€", "€", "MXN"),
    "pt": ("€", "R$"),
    "it": ("€",),
    "nl": ("€",),
}
DATE_STYLES: dict[str, tuple[str, ...]] = {
    "en": ("%-d %B", "%B %-d", "%Y-%m-%d", "%d/%m/%Y", "%-d %b", "%d.%m.", "the %o"),
    "de": ("%d.%m.", "%d.%m.%Y"),
    "fr": ("%d/%m", "%d/%m/%Y"),
    "es": ("%d/%m", "%d/%m/%Y"),
    "pt": ("%d/%m", "%d/%m/%Y"),
    "it": ("%d/%m", "%d/%m/%Y"),
    "nl": ("%d-%m", "%d-%m-%Y"),
}

_NO_DECOMPOSITION = str.maketrans({"ø": "o", "ł": "l", "ı": "i", "ß": "ss"})


class Facts:
    """Draws facts on demand; the same slot gives the same value throughout a ticket."""

    def __init__(self, rng: Random, created: datetime, lang: str) -> None:
        self.rng = rng
        self.created = created
        self.lang = lang
        self._known: dict[str, str] = {}
        self._used: set[str] = set()
        self._date_style = rng.choice(DATE_STYLES[lang])
        self._currency = rng.choice(CURRENCIES[lang])
        self._amount = round(rng.lognormvariate(4.6, 1.1), 2) + 4
        self._n = rng.randint(2, 9)

    def __call__(self, slot: str) -> str:
        value = self._known.get(slot)
        if value is None:
            maker = _MAKERS.get(slot)
            value = maker(self) if maker else self.rng.choice(load("facts")[slot])
            self._known[slot] = value
        return value

    def say(self, template: str) -> str:
        """Expand one template with this ticket's facts."""
        return expand(template, self.rng, self)

    def pick(self, pool: list[str]) -> str:
        """Expand a template of the pool, one not used in this ticket while there is any."""
        fresh = [phrase for phrase in pool if phrase not in self._used] or pool
        phrase = self.rng.choice(fresh)
        self._used.add(phrase)
        return self.say(phrase)

    def forget(self, *slots: str) -> None:
        """Let the next use of these slots draw a new value."""
        for slot in slots:
            self._known.pop(slot, None)

    def fix(self, slot: str, value: str) -> None:
        """Give a slot a value from outside."""
        self._known[slot] = value

    def step_to(self, moment: datetime) -> None:
        """Set the date and time that the header of a quoted mail shows."""
        self.forget("time", "agent")
        self._known["longdate"] = _write_date(moment, self.lang)
        self._known["day"] = load("facts")["days_en"][moment.weekday()]

    def digits(self, count: int) -> str:
        return str(self.rng.randrange(10 ** (count - 1), 10**count))

    def day(self, moment: datetime) -> str:
        """Write a date in the ticket's own style, without a leading zero where people leave it out."""
        style = self._date_style
        if "%o" in style:
            suffix = "th" if 10 < moment.day < 20 else {1: "st", 2: "nd", 3: "rd"}.get(moment.day % 10, "th")
            return f"the {moment.day}{suffix}"
        style = style.replace("%B", load("facts")["months_en"][moment.month - 1])
        style = style.replace("%b", load("facts")["months_en"][moment.month - 1][:3])
        return moment.strftime(style.replace("%-d", str(moment.day)))

    def ago(self, low: int, high: int) -> datetime:
        return self.created - timedelta(days=self.rng.randint(low, high), minutes=self.rng.randint(0, 600))

    def money(self, value: float) -> str:
        """Write an amount in the ticket's currency and number style."""
        value = round(value, 2) if value < 1000 or self.rng.random() < 0.6 else float(round(value))
        plain = f"{value:,.2f}"
        if self.lang != "en" or self._currency in ("SEK", "EUR", "CHF"):
            plain = plain.replace(",", " ").replace(".", ",").replace(" ", "." if self.lang in ("de", "it") else " ")
        if self._currency in ("$", "£", "₹", "CA$", "R$") or (self._currency == "€" and self.lang == "en"):
            return self._currency + plain
        return f"{plain} {self._currency}"

    def email_of(self, first: str, last: str, shared: bool = True) -> str:
        """Make an address at the ticket's domain; now and then the firm's shared mailbox."""
        ascii_first, ascii_last = (_ascii(word) for word in (first, last))
        forms = [f"{ascii_first}.{ascii_last}", f"{ascii_first[0]}.{ascii_last}", ascii_first, "info"]
        local = self.rng.choice(forms if shared else forms[:2])
        return f"{local}@{self('domain')}"

    def full_name(self) -> str:
        return f"{self('first')} {self('last')}"


def _ascii(word: str) -> str:
    """Spell a name the way it shows up in an address."""
    plain = unicodedata.normalize("NFKD", word.lower().translate(_NO_DECOMPOSITION))
    return "".join(letter for letter in plain if letter.isascii() and letter.isalpha())


def _other_name(facts: Facts) -> str:
    lists = load("facts")
    return f"{facts.rng.choice(lists['first'])} {facts.rng.choice(lists['last'])}"


def _order(facts: Facts) -> str:
    number = facts.digits(6)
    return facts.rng.choice((f"QF-{number}", f"#{number}", f"QF{number}", f"{number[:4]}-{facts.digits(4)}"))


def _invoice(facts: Facts) -> str:
    year = facts.created.year
    return facts.rng.choice((f"INV-{year}-{facts.digits(5)}", f"R{facts.digits(6)}", f"{year}/{facts.digits(4)}"))


def _phone(facts: Facts) -> str:
    # 555 and a leading 0 keep these off real lines.
    return facts.rng.choice((f"+00 555 {facts.digits(4)}", f"0555 {facts.digits(3)} {facts.digits(3)}", "555-0199"))


def _time(facts: Facts) -> str:
    hour, minute = facts.rng.randint(7, 18), facts.rng.randrange(0, 60, 5)
    if facts.lang == "en" and facts.rng.random() < 0.35:
        return f"{(hour - 1) % 12 + 1}:{minute:02d} {'am' if hour < 12 else 'pm'}"
    return f"{hour}:{minute:02d}"


def _write_date(moment: datetime, lang: str) -> str:
    if lang == "en":
        return f"{moment.day} {load('facts')['months_en'][moment.month - 1]} {moment.year}"
    return moment.strftime({"de": "%d.%m.%Y", "nl": "%d-%m-%Y"}.get(lang, "%d/%m/%Y"))


def _domain(facts: Facts) -> str:
    """Most people write from their firm's address."""
    if facts.rng.random() < 0.2:
        return facts.rng.choice(load("facts")["domain"])
    words = facts("company").replace("&", " ").split()
    return "-".join(filter(None, map(_ascii, words[:2]))) + facts.rng.choice((".example", ".example.com"))


_MAKERS: dict[str, Callable[[Facts], str]] = {
    "name": Facts.full_name,
    "name2": _other_name,
    "name3": _other_name,
    "email": lambda f: f.email_of(f("first"), f("last")),
    "email2": lambda f: f.email_of(*f("name2").split(" ", 1)),
    "domain": _domain,
    "company2": lambda f: f.rng.choice(load("facts")["company"]),
    "city2": lambda f: f.rng.choice(load("facts")["city"]),
    "street": lambda f: f"{f.rng.choice(load('facts')['street'])} {f.rng.randint(1, 140)}",
    "plan2": lambda f: f.rng.choice([plan for plan in load("facts")["plan"] if plan != f("plan")]),
    "order": _order,
    "invoice": _invoice,
    "ticket": lambda f: f"T-{f.digits(5)}",
    "ref": lambda f: f.rng.choice(
        (f.digits(8), f"{f.digits(3)}-{f.digits(4)}", f"KD{f.digits(6)}", f"C-{f.digits(5)}")
    ),
    "serial": lambda f: f"QS{f.digits(4)}{f.rng.choice('ABCDEFGH')}{f.digits(3)}",
    "sku": lambda f: f"QP-{f.digits(2)}{f.rng.choice(('', 'W', '-EU', '-UK'))}",
    "sku2": lambda f: f"QS-{f.digits(2)}{f.rng.choice(('', 'B', '-EU', '-US'))}",
    "tracking": lambda f: f"{f.rng.choice(('BK', 'PW', 'NH', 'TX'))}{f.digits(10)}",
    "vatid": lambda f: f"{f.rng.choice(('XX', 'ZZ'))}{f.digits(9)}",
    "amount": lambda f: f.money(f._amount),
    "amount2": lambda f: f.money(f._amount * f.rng.uniform(0.25, 0.9)),
    "currency": lambda f: {"€": "euros", "$": "US dollars", "£": "pounds", "₹": "rupees"}.get(f._currency, f._currency),
    "n": lambda f: str(f._n),
    "n2": lambda f: str(f._n + f.rng.randint(1, 12)),
    "big": lambda f: str(f.rng.randint(40, 900)),
    "date": lambda f: f.day(f.ago(2, 12)),
    "date2": lambda f: f.day(f.ago(3, 9)),
    "fut": lambda f: f.day(f.created + timedelta(days=f.rng.randint(3, 20))),
    "weekday": lambda f: load("facts")["days_en"][f.ago(2, 5).weekday()],
    "day": lambda f: load("facts")["days_en"][f.rng.randrange(5)],
    "month": lambda f: load("facts")["months_en"][(f.created.month - 2) % 12],
    "longdate": lambda f: _write_date(f.ago(1, 6), f.lang),
    "time": _time,
    "phone": _phone,
    "card4": lambda f: f"{f.rng.randrange(10000):04d}",
    "card4b": lambda f: f"{f.rng.randrange(10000):04d}",
    "ip": lambda f: f"{f.rng.choice(('192.0.2', '198.51.100', '203.0.113'))}.{f.rng.randint(2, 250)}",
    "url": lambda f: f"https://{f.rng.choice(('app', 'www', 'shop', 'help'))}.quillfern.example/{f.digits(4)}",
    "version": lambda f: f"{f.rng.randint(3, 5)}.{f.rng.randint(0, 19)}.{f.rng.randint(0, 6)}",
    "errno": lambda f: f.rng.choice(("500", "502", "409", "422", "504", "401", "429")),
    "bademail": lambda f: f.rng.choice(load("facts")["badmail"]),
    "wrong": lambda f: f.rng.choice(("billing", "security", "feature", "refund")),
}
