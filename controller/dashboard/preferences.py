"""Language and colours of one request: from its cookies, else from the browser's headers.

Called by `app`. Out: a `Preferences`. Unsupported values are ignored.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

LANGUAGES: Final = {"en": "English", "zh": "中文"}
THEMES: Final = ("auto", "light", "dark")
LANGUAGE_COOKIE: Final = "hami_dra_lang"
THEME_COOKIE: Final = "hami_dra_theme"


class Preferences(Struct, frozen=True):
    language: str = "en"
    theme: str = "auto"


def preferences(cookies: Mapping[str, str], accept_language: str) -> Preferences:
    language, theme = cookies.get(LANGUAGE_COOKIE, ""), cookies.get(THEME_COOKIE, "")
    if language not in LANGUAGES:
        language = preferred_language(accept_language)
    return Preferences(language, theme if theme in THEMES else "auto")


def preferred_language(accept: str) -> str:
    """Return the supported language with the highest weight in `Accept-Language` (RFC 9110, 12.5.4)."""
    best, weight = "en", 0.0
    for entry in accept.split(",")[:20]:
        tag, _, parameter = entry.partition(";")
        language = tag.strip().lower().partition("-")[0]
        name, _, value = parameter.strip().partition("=")
        try:
            quality = float(value) if name.strip() == "q" else 1.0
        except ValueError:
            continue
        if language in LANGUAGES and quality > weight:
            best, weight = language, quality
    return best
