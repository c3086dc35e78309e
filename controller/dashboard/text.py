"""Messages by language: English text is the key, `chinese.MESSAGES` has the translation.

`Texts(language)` is `t` in templates: `t("Free cards")`, `t("{n} of {total}", n=3, total=8)`,
`t.count(n, "{n} device", "{n} devices", n=n)`. A
message missing from the catalogue appears in English; a test requires that none is missing. Sentences
of decisions are not messages: they are those of events and commands, in English.
"""

from typing import Final

from controller.dashboard.chinese import MESSAGES

CATALOGUES: Final[dict[str, dict[str, str]]] = {"en": {}, "zh": MESSAGES}


class Texts:
    def __init__(self, language: str) -> None:
        self.language = language
        self._messages = CATALOGUES[language]

    def count(self, number: int, one: str, many: str, /, **values: object) -> str:
        """Return one of two messages by number, for languages that have two."""
        return self(one if number == 1 else many, **values)

    def __call__(self, message: str, **values: object) -> str:
        found = self._messages.get(message, message)
        return found.format(**values) if values else found
