"""Messages by language: English text is the key, `chinese.MESSAGES` has the translation.

`Texts(language)` is `t` in templates: `t("Free cards")`, `t("{n} of {total}", n=3, total=8)`. A
message missing from the catalogue appears in English; a test requires that none is missing.
"""

from typing import Final

from controller.dashboard.chinese import MESSAGES

CATALOGUES: Final[dict[str, dict[str, str]]] = {"en": {}, "zh": MESSAGES}


class Texts:
    def __init__(self, language: str) -> None:
        self.language = language
        self._messages = CATALOGUES[language]

    def __call__(self, message: str, **values: object) -> str:
        found = self._messages.get(message, message)
        return found.format(**values) if values else found
