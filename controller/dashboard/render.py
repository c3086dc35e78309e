"""Rendering of templates to HTML: always escaped, in the requested language and colours.

Used by `app` and `stream`. A fragment is the inside of a page's <main>; a page is a fragment in
`layout.html`. An undefined variable in a template is an error.
"""

import hashlib
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Struct
from msgspec.structs import asdict

from controller.dashboard import wording
from controller.dashboard.pacing import paced_each
from controller.dashboard.pages import MENU, Page
from controller.dashboard.preferences import LANGUAGES, THEMES, Preferences
from controller.dashboard.source import ControllerState
from controller.reasons import CATALOGUE, english
from hami_dra.api import times

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"


def _chinese() -> dict[str, str]:
    """Return the messages of `chinese.toml`, which has a table for each page, and those of reasons."""
    pages = tomllib.loads((HERE / "chinese.toml").read_text(encoding="utf-8")).values()
    of_reasons = {code.english: code.chinese for code in CATALOGUE.values()}
    return {message: text for page in (*pages, of_reasons) for message, text in page.items()}


MESSAGES: Final[dict[str, dict[str, str]]] = {"en": {}, "zh": _chinese()}
"""By language: English text → its translation."""


class Texts:
    """Messages in one language, `t` in templates: `t("{n} of {total}", n=3, total=8)`,
    `t.count(n, "{n} device", "{n} devices", n=n)`.

    A message without a translation appears in English; a test requires that none is missing.
    Sentences of decisions are not messages: they are those of events and commands, in English.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._messages = MESSAGES[language]

    def count(self, number: int, one: str, many: str, /, **values: object) -> str:
        """Return one of two messages by number, for languages that have two."""
        return self(one if number == 1 else many, **values)

    def __call__(self, message: str, **values: object) -> str:
        translated = self._messages.get(message, message)
        return translated.format(**values) if values else translated


@lru_cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        amount=wording.amount, count=wording.count, age=times.age, moment=wording.moment, score=wording.score
    )
    made.globals.update(
        percent=wording.percent,
        permille=wording.permille,
        reason=english,
        vendor_title=wording.vendor,
        link=link,
        asset=asset,
        menu=MENU,
        explain_command=explain_command,
        status_command=status_command,
        languages=LANGUAGES,
        themes=THEMES,
    )
    return made


def link(path: str, **query: object) -> str:
    """Return a path with a query, without empty values: `link("/node", name="a b")` → `/node?name=a+b`."""
    asked = urlencode({key.replace("_", "-"): str(value) for key, value in query.items() if value not in ("", None)})
    return f"{path}?{asked}" if asked else path


def explain_command(pod: str) -> str:
    """Return the command that explains the decision on a pod, for a shell.

    >>> explain_command("team-a/train-0"), explain_command("team-a/$(reboot)")
    ('hami-dra explain train-0 -n team-a', "hami-dra explain '$(reboot)' -n team-a")
    """
    namespace, _, name = pod.partition("/")
    return f"hami-dra explain {shlex.quote(name)} -n {shlex.quote(namespace)}"


def status_command(node: str) -> str:
    return f"hami-dra status --node {shlex.quote(node)}"


@lru_cache
def asset(name: str) -> str:
    """Return the file's address, which changes with its content, so that browsers may cache it for ever."""
    digest = hashlib.blake2b((STATIC / name).read_bytes(), digest_size=8).hexdigest()
    return f"/static/{name}?{digest}"


def fragment(template: str, context: Mapping[str, Any], language: str) -> str:
    return "".join(_parts(template, context, language))


async def paced_fragment(template: str, context: Mapping[str, Any], language: str) -> str:
    """Return the same as `fragment`, and let the event loop run in between."""
    return "".join([part async for part in paced_each(_parts(template, context, language))])


def _parts(template: str, context: Mapping[str, Any], language: str) -> Iterator[str]:
    return environment().get_template(template).generate(**context, t=Texts(language), language=language)


def digest(text: str) -> str:
    """Return a digest that distinguishes the fragment shown from a newer one."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Frame(Struct, frozen=True):
    """What stands around the content of a page."""

    page: Page
    here: str
    """Path and query of the page, to return to."""
    state: ControllerState
    pending: int = 0
    """Number in the badge of the menu."""
    sees_all: bool = True
    """The user may view all namespaces."""
    grafana: str = ""
    """Address to link to; empty: none."""
    is_open: bool = False
    notices: Sequence[tuple[str, Mapping[str, str]]] = ()
    """Keys of the catalogue with their values, shown above everything."""


def whole(frame: Frame, body: str, preferences: Preferences, *, live: bool = True) -> str:
    """Return a whole page."""
    stream = link("/events", view=frame.here, seen=digest(body), lang=preferences.language) if live else ""
    return alone("layout.html", {**asdict(frame), "body": body, "stream": stream}, preferences)


def alone(template: str, context: Mapping[str, Any], preferences: Preferences) -> str:
    """Return a page, by itself one without menu and stream: login, refusals."""
    return fragment(template, {**context, "preferences": preferences}, preferences.language)
