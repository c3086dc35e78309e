"""Spelling rules of Kubernetes names, as far as ResourceSlices use them.

Called by `limits`. In: a text. Out: what is wrong with it and how it must look, or an empty string.
Sources: k8s.io/apimachinery util/validation and k8s.io/kubernetes pkg/apis/resource/validation, 1.37.
"""

import re
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_C_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_PART: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

MAX_LABEL: Final = 63
MAX_SUBDOMAIN: Final = 253
MAX_DRIVER: Final = 63
MAX_POOL: Final = 253
MAX_ID: Final = 32
MAX_NAME_PART: Final = 63


def label(text: str) -> str:
    """DNS label: devices, counter sets, counters."""
    return _check(
        text, _LABEL, MAX_LABEL, "lower case letters, digits and '-', beginning and ending with a letter or digit"
    )


def subdomain(text: str) -> str:
    """DNS subdomain: nodes, objects."""
    rule = "lower case letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
    return _check(text, _SUBDOMAIN, MAX_SUBDOMAIN, rule)


def driver(text: str) -> str:
    """Also the domain of an attribute. Capitals are allowed, as for CSI drivers."""
    rule = "letters, digits, '-' and '.', each part beginning and ending with a letter or digit"
    return _check(text.lower(), _SUBDOMAIN, MAX_DRIVER, rule, shown=text)


def pool(text: str) -> str:
    """DNS subdomains joined by '/'."""
    if not text or len(text) > MAX_POOL:
        return _length(text, MAX_POOL)
    return next((problem for part in text.split("/") if (problem := subdomain(part))), "")


def qualified_name(text: str) -> str:
    """Of an attribute or capacity: [domain/]identifier."""
    domain, slash, identifier = text.rpartition("/")
    if "/" in domain:
        return f"{text!r} has more than one '/': write domain/identifier, or the identifier alone"
    if slash and (problem := driver(domain)):
        return f"the domain {problem}"
    return _check(identifier, _C_IDENTIFIER, MAX_ID, "letters, digits and '_', not beginning with a digit")


def label_key(text: str) -> str:
    """Key of a taint or a condition: [domain/]name."""
    domain, slash, name = text.rpartition("/")
    if slash and (problem := subdomain(domain)):
        return f"the domain {problem}"
    rule = "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
    return _check(name, _NAME_PART, MAX_NAME_PART, rule)


def label_value(text: str) -> str:
    """May be empty."""
    rule = "letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
    return _check(text, _NAME_PART, MAX_NAME_PART, rule) if text else ""


def _check(text: str, pattern: re.Pattern[str], longest: int, rule: str, shown: str = "") -> str:
    if not text or len(text) > longest:
        return _length(shown or text, longest)
    return "" if pattern.fullmatch(text) else f"{shown or text!r} is not allowed: use {rule}"


def _length(text: str, longest: int) -> str:
    if not text:
        return "is empty: give it a name"
    return f"{text[:24]}... has {len(text)} characters: use at most {longest}"
