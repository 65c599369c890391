"""Checks that make parsers, interpreters and regular expressions run away, fail or lie; none of them is correct.

Each is (name, check), generated, and small enough to be an ordinary completion, but for those whose size is the point.
"""

import json

from pipeline.rewards.verifiers import VerifierTask


def _hash(answer: str, reference: str = r"\frac{1}{7}") -> VerifierTask:
    return VerifierTask(f"Let me think.\n#### {answer}", reference)


def _box(answer: str, reference: str = r"\frac{1}{7}") -> VerifierTask:
    return VerifierTask(f"Hence \\boxed{{{answer}}}.", reference)


def _nested_fraction(depth: int) -> str:
    return r"\frac{1}{1+" * depth + "1" + "}" * depth


CATASTROPHIC = {"type": "string", "pattern": "^(a+)+$"}

MATHS = {
    "tower of powers": _box("((((9^{9})^{9})^{9})^{9})^{9}"),
    "tower with the answer behind it": _hash("10**10**10**10 + 1/7"),
    "factorial of a factorial": _hash("99999!!"),
    "binomial": _box(r"\binom{10^{9}}{5 \cdot 10^{8}}"),
    "300 nested parentheses": _hash("(" * 150 + "1" + ")" * 150),
    "a megabyte of digits": _hash("7" * 1_000_000),
    "a megabyte of digits in a box": _box("7" * 1_000_000),
    "a megabyte of open boxes": VerifierTask("\\boxed{" * 143_000, r"\frac{1}{7}"),
    "a megabyte of hashes": VerifierTask("#" * 1_000_000, r"\frac{1}{7}"),
    "fractions, 30 deep": _box(_nested_fraction(30)),
    "roots, 40 deep": _box(r"\sqrt{1+" * 40 + "2" + "}" * 40),
    "huge sum": _box(r"\sum_{k=1}^{10^{9}} \frac{1}{k^{3}} + 3^{3^{3^{3}}}"),
    "hard integral": _box(r"\int_{0}^{1} \sin(\cos(\tan(x^{x}))) e^{x^{7}} dx"),
    "hard limit": _box(r"\lim_{x \to 0} \frac{\sin(\tan(x)) - \tan(\sin(x))}{x^{7}}"),
    "expansion": _box(r"(a+b+c+d+e+f+g+h)^{60}", "(a+b+c+d+e+f+g+h)^{59}"),
    "str() bomb": _box("10^{10^{8}}"),
    "equation to solve": _box("x^{17} + x^{5} + x + 10^{50} = 0", "x^{17} - x^{5} + 3 = 0"),
    "sum of many roots": _box("+".join(rf"\sqrt{{{n}}}" for n in range(2, 40))),
    "nested absolute values": _box("|" * 60 + "x" + "|" * 60),
    "commas only": _box("," * 300 + "1"),
    "unbalanced LaTeX": _box(r"\left(\left[\frac{\frac{1}{2" + r"\}" * 20),
    "NUL bytes": _hash("1\0/\0" + "7\0" * 20 + "1"),
    "lone surrogates": _hash("\ud800\udfff1/8"),
    "superscript digits": _hash("\u2077\u2044\u2077\u2079"),
    "digits of two scripts": _hash("\u0661/\u096e"),
    "combining marks": _hash("1" + "\u0301\u0323" * 150),
    "zero-width characters in another answer": _hash("1/\u200b7\u20601"),
    "right-to-left override": _hash("\u202e7/1"),
    "poisoned reference": VerifierTask("#### 1/7", "9^{9^{9^{9^{9}}}}"),
    "unparsable reference": VerifierTask("#### 1/7", r"\frac{\frac{"),
}
OTHERS = {
    "JSON nested 100,000 deep": VerifierTask("[" * 100_000 + "]" * 100_000, '{"type": "object"}', "json_schema"),
    "JSON with a megabyte of digits": VerifierTask("7" * 1_000_000, '{"type": "string"}', "json_schema"),
    "JSON of a lone surrogate": VerifierTask('"\\ud800"', '{"type": "integer"}', "json_schema"),
    "NaN is not JSON": VerifierTask("NaN", '{"type": "number"}', "json_schema"),
    "catastrophic pattern": VerifierTask(json.dumps("a" * 64 + "!"), json.dumps(CATASTROPHIC), "json_schema"),
    "schema that refers to itself": VerifierTask("1", '{"$ref": "#"}', "json_schema"),
    "schema elsewhere": VerifierTask("1", '{"$ref": "http://127.0.0.1:9/schema.json"}', "json_schema"),
    "schema nested 100,000 deep": VerifierTask("1", '{"not":' * 100_000 + "{}" + "}" * 100_000, "json_schema"),
    "normalising 100 kB of marks": VerifierTask("e" + "\u0301\u0323" * 50_000, "é", "normalised"),
}
POISON = {**MATHS, **OTHERS}
