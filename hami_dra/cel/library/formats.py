"""Kubernetes' format library: named formats and their validation.

The messages are those of apimachinery's validation package.
"""

import base64
import re
from collections.abc import Callable
from datetime import date
from typing import Final

from msgspec import Struct

from hami_dra.cel import meter
from hami_dra.cel.library.formatting import go_quote
from hami_dra.cel.library.registry import cost_by_name, function, method
from hami_dra.cel.library.urls import BadURL, parse_request
from hami_dra.cel.values import NONE, TYPE_NAMES, Optional

Check = Callable[[str], list[str]]
"""Returns the problems of a text."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = _LABEL + "(\\." + _LABEL + ")*"
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_KEY: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_KEY_PROBLEM: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))")


class Format(Struct, frozen=True, eq=False):
    """A named format, of which there is one. `pattern_size` is only for the price of a validation."""

    name: str
    problems: Check
    pattern_size: int


TYPE_NAMES[Format] = "kubernetes.NamedFormat"


def _against(problem: str, pattern: str, *examples: str) -> str:
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{problem} (e.g. {shown}regex used for validation is '{pattern}')"


def _too_long(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} characters"] if len(text.encode()) > limit else []


def _matching(pattern: str, problem: str, *examples: str, limit: int = 63) -> Check:
    explained = _against(problem, pattern, *examples)
    return lambda text: _too_long(text, limit) + ([] if re.fullmatch(pattern, text) else [explained])


_plain_label_problems: Final = _matching(
    _LABEL,
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character",
    "my-name",
    "123-abc",
)
_subdomain_problems: Final = _matching(
    _SUBDOMAIN,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
    "example.com",
    limit=253,
)
_label_1035_problems: Final = _matching(
    _LABEL_1035,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', "
    "start with an alphabetic character, and end with an alphanumeric character",
    "my-name",
    "abc-123",
)
_label_value_problems: Final = _matching(
    f"({_KEY})?", "a valid label must be an empty string or " + _KEY_PROBLEM[5:], "MyValue", "my_value", "12345"
)


def _label_problems(text: str) -> list[str]:
    if "." in text and re.fullmatch(_SUBDOMAIN, text):
        return [*_too_long(text, 63), "must not contain dots"]
    return _plain_label_problems(text)


def _prefix(check: Check) -> Check:
    """Return the check for a prefix of a generated name, which may end in a dash.

    As in Kubernetes, the letter before the dash is dropped, too.
    """
    return lambda text: check(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)


def _qualified_name_problems(text: str) -> list[str]:
    examples = ("MyName", "my.name", "123-abc")
    parts = text.split("/")
    problems: list[str] = []
    if len(parts) > 2:
        explained = _against("a valid label key " + _KEY_PROBLEM, _KEY, *examples)
        return [explained + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"]
    if len(parts) == 2:
        found = _subdomain_problems(parts[0]) if parts[0] else ["must be non-empty"]
        problems += ["prefix part " + problem for problem in found]
    name = parts[-1]
    problems += ["name part " + problem for problem in (_too_long(name, 63) if name else ["must be non-empty"])]
    if not re.fullmatch(_KEY, name):
        problems.append("name part " + _against(_KEY_PROBLEM, _KEY, *examples))
    return problems


def _uri_problems(text: str) -> list[str]:
    try:
        parse_request(text)
    except BadURL as error:
        return [f"parse {go_quote(text)}: {error}"]
    return []


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True)) and "\n" not in text
    except ValueError:
        return False


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    try:
        # A leap year in place of the year 0, which Python does not have.
        date(int(match[1]) or 4, int(match[2]), int(match[3]))
    except ValueError:
        return False
    return True


def _is_datetime(text: str) -> bool:
    parts = text.lower().split("t")
    match = _TIME.fullmatch(parts[1]) if len(parts) > 1 and _is_date(parts[0]) else None
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _problem_unless(test: Callable[[str], bool], problem: str) -> Check:
    return lambda text: [] if test(text) else [problem]


_TIME_PATTERN_SIZE: Final = len(r"^([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))$")
FORMATS: Final = {
    "dns1123Label": Format("DNS1123Label", _label_problems, 30),
    "dns1123Subdomain": Format("DNS1123Subdomain", _subdomain_problems, 60),
    "dns1035Label": Format("DNS1035Label", _label_1035_problems, 30),
    "qualifiedName": Format("QualifiedName", _qualified_name_problems, 60),
    "dns1123LabelPrefix": Format("DNS1123LabelPrefix", _prefix(_label_problems), 30),
    "dns1123SubdomainPrefix": Format("DNS1123SubdomainPrefix", _prefix(_subdomain_problems), 60),
    "dns1035LabelPrefix": Format("DNS1035LabelPrefix", _prefix(_label_1035_problems), 30),
    "labelValue": Format("LabelValue", _label_value_problems, 40),
    "uri": Format("URI", _uri_problems, 1103),
    "uuid": Format(
        "uuid",
        _problem_unless(lambda text: bool(_UUID.fullmatch(text)), "does not match the UUID format"),
        len("(?i)^$") + len(_UUID.pattern),
    ),
    "byte": Format("byte", _problem_unless(_is_base64, "invalid base64"), 84),
    "date": Format("date", _problem_unless(_is_date, "invalid date"), _TIME_PATTERN_SIZE),
    "datetime": Format("datetime", _problem_unless(_is_datetime, "invalid datetime"), _TIME_PATTERN_SIZE),
}


def _constant(value: Format) -> Callable[[], Format]:
    return lambda: value


for _name, _format in FORMATS.items():
    function(f"format.{_name}", "-> Format")(_constant(_format))


@function("format.named", "string -> optional(Format)")
def named(name: str) -> Optional:
    found = FORMATS.get(name)
    return Optional(found) if found else NONE


cost_by_name["validate"] = lambda args: meter.pattern(args[1], "x" * args[0].pattern_size)


@method("validate", "Format, string -> optional(list(string))")
def validate(value: Format, text: str) -> Optional:
    problems = value.problems(text)
    return Optional(problems) if problems else NONE
