"""Recall and precision of the mask for personal data: `python -m benchmarks.pii [--small] [--per-cell N]`. Faker makes
the entities, locale by locale. The last line is JSON: `recall` by entity and locale, `kept` by sort of clean text."""

import json
import random
import re
import string
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from faker import Faker

from benchmarks.parts import options
from pipeline.traces.pii import Unmaskable, mask

LOCALES = (
    *("en_US", "en_GB", "en_IN", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pl_PL", "pt_BR", "ru_RU", "tr_TR"),
    *("ko_KR", "ja_JP", "zh_CN"),
)
BARE = ("{}", "Hi, {} is mine.", "why does this fail?\n\nuser={}\n", "Please forward it to {}, thanks!", "({})", '"{}"')
"""Sentences that do not say what is in them."""
SAID = {
    "phone": (
        "My phone number is {}.",
        "call me at {}",
        "Tel: {}",
        "phone={}",
        "我的电话是{}。",
        "전화번호는 {} 입니다",
    ),
    "card": ("Charge my card {} please", "카드 번호 {}", "my Visa is {}, exp 12/27"),
    "e-mail": ("Email me at {}.", "contact: {}; urgent", "メールは{}です"),
    "IBAN": ("Transfer it to {} today.", "IBAN: {}"),
    "IPv4": ("Server {} is down", "ping {}: timeout"),
    "IPv6": ("Server {} is down", "ping {} times out"),
    "SSN": ("SSN: {}", "my social security number is {}"),
    "RRN": ("주민등록번호는 {} 입니다", "RRN {}"),
    "API key": ("export KEY={}", "Authorization: Bearer {}", "my key is {}, revoke it"),
    "AWS key": ("aws_access_key_id = {}", "AWS_ACCESS_KEY_ID={}"),
    "AWS secret": ("aws_secret_access_key = {}", 'AWS_SECRET_ACCESS_KEY="{}"'),
}


class Case(NamedTuple):
    entity: str
    locale: str
    value: str
    text: str


def entities(fake: Faker, locale: str, chance: random.Random) -> dict[str, Callable[[], str]]:
    """What Faker makes for a locale; the identity numbers and keys only where they belong."""
    made: dict[str, Callable[[], str]] = {
        "e-mail": fake.email,
        "phone": fake.phone_number,
        "card": fake.credit_card_number,
        "IBAN": fake.iban,
    }
    if locale == "en_US":
        made |= {"SSN": fake.ssn, "IPv4": fake.ipv4, "IPv6": fake.ipv6}
        made |= {"API key": lambda: api_key(chance), "AWS key": lambda: "AKIA" + letters(chance, 16, upper=True)}
        made["AWS secret"] = lambda: letters(chance, 40, more="/+")
    if locale == "ko_KR":
        made["RRN"] = fake.ssn
    return made


def letters(chance: random.Random, length: int, upper: bool = False, more: str = "") -> str:
    alphabet = (string.ascii_uppercase if upper else string.ascii_letters) + string.digits + more
    return "".join(chance.choices(alphabet, k=length))


def api_key(chance: random.Random) -> str:
    """A key in the published form of one of the usual services."""
    forms = {
        "sk-proj-": 48, "sk-ant-api03-": 80, "sk_live_": 24, "ghp_": 36, "github_pat_": 70, "glpat-": 20,
        "xoxb-": 40, "AIza": 35, "hf_": 34, "npm_": 36,
    }  # fmt: skip
    prefix = chance.choice([*forms, "eyJ"])
    if prefix == "eyJ":
        return ".".join((prefix + letters(chance, 33), letters(chance, 80), letters(chance, 43, more="-_")))
    return prefix + letters(chance, forms[prefix])


def cases(per_cell: int, seed: int = 0) -> Iterator[Case]:
    """Labelled texts: `per_cell` of each entity and locale, half in sentences that say what they hold."""
    for locale in LOCALES:
        fake = Faker(locale)
        fake.seed_instance(seed)
        chance = random.Random(f"{seed} {locale}")
        for entity, make in entities(fake, locale, chance).items():
            for number in range(per_cell):
                value = make()
                bare = number % 2 == 0 and entity != "AWS secret"  # without context it is any 40 characters
                yield Case(entity, locale, value, chance.choice(BARE if bare else SAID[entity]).format(value))


def clean_texts(count: int, seed: int = 0) -> dict[str, list[str]]:
    """Texts without personal data, by sort."""
    chance = random.Random(seed)
    found: dict[str, list[str]] = {}
    for locale in LOCALES:
        fake = Faker(locale)
        fake.seed_instance(seed)
        found[f"prose {locale}"] = [fake.text(300) for _ in range(max(1, count // 5))]
    fake = Faker("en_US")
    fake.seed_instance(seed)
    found["arithmetic"] = [arithmetic(chance) for _ in range(count)]
    found["numbers"] = [f"The answer is {chance.randint(0, 10 ** chance.randint(1, 12))}." for _ in range(count)]
    found["dates and times"] = [fake.date_time().strftime(chance.choice(DATES)) for _ in range(count)]
    found["UUIDs and hashes"] = [f"id {fake.uuid4()} sha {fake.sha256()} {fake.md5()}" for _ in range(count)]
    found["ISBNs"] = [f"ISBN {fake.isbn13()} or {fake.isbn10()}" for _ in range(count)]
    found["versions and prices"] = [
        f"v{chance.randint(0, 30)}.{chance.randint(0, 99)}.{chance.randint(0, 9999)} costs "
        f"${chance.randint(0, 10**7):,}.{chance.randint(0, 99):02}"
        for _ in range(count)
    ]
    return found


DATES = ("%Y-%m-%d %H:%M:%S", "%d/%m/%Y %H:%M", "%d.%m.%Y", "%Y-%m-%dT%H:%M:%S.%fZ", "%a %d %b %Y", "%Y%m%d", "%s")


def arithmetic(chance: random.Random) -> str:
    a, b = (chance.randint(1, 10 ** chance.randint(1, 11)) for _ in range(2))
    sign = chance.choice("+-*")
    total = {"+": a + b, "-": a - b, "*": a * b}[sign]
    gap = chance.choice(("", " "))
    return f"{a}{gap}{sign}{gap}{b}{gap}={gap}{total}. So {a} and {b}.\n#### {total}"


def masked_away(case: Case) -> bool:
    """Whether nothing is left of the value: no word of it with three letters or digits is still in the text."""
    around = case.text.replace(case.value, " ")
    try:
        after = mask(case.text)
    except Unmaskable:
        return True
    return not any(part in after for part in re.findall(r"\w{3,}", case.value) if part not in around)


def measure(per_cell: int, clean: int, seed: int = 0) -> dict[str, Any]:
    """`recall`: entity, locale, share found. `kept`: sort of clean text, share left as it was."""
    hits: dict[str, dict[str, list[bool]]] = {}
    for case in cases(per_cell, seed):
        hits.setdefault(case.entity, {}).setdefault(case.locale, []).append(masked_away(case))
    recall = {e: {lo: sum(h) / len(h) for lo, h in by.items()} for e, by in hits.items()}
    texts = clean_texts(clean, seed)
    kept = {sort: sum(mask(text) == text for text in some) / len(some) for sort, some in texts.items()}
    return {"recall": recall, "kept": kept}


def main() -> None:
    parser = options(__doc__, "20 of them")
    parser.add_argument("--per-cell", type=int, default=1000, help="texts of each entity and locale")
    chosen = parser.parse_args()
    per_cell = 20 if chosen.small else chosen.per_cell
    shares = measure(per_cell, per_cell)
    for entity, by_locale in shares["recall"].items():
        print(f"{entity:<11}", "  ".join(f"{locale} {share:.3f}" for locale, share in by_locale.items()))
    for sort, share in shares["kept"].items():
        print(f"{sort:<22} kept {share:.4f}")
    print(json.dumps(shares))


if __name__ == "__main__":
    main()
