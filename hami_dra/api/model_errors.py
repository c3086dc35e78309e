"""What pydantic finds wrong with one of our own documents, in words for people. Pure."""

from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ValidationError

from hami_dra.api.similar_names import did_you_mean

_UNKNOWN_FIELD: Final = "extra_forbidden"


def problems_of(error: ValidationError, models: Sequence[type[BaseModel]], document: str) -> str:
    """Return `field: what is wrong` for each problem, separated by semicolons.

    `models`: of the document and its parts; `document`: how to call it as a whole.
    """
    known = [field.alias or name for model in models for name, field in model.model_fields.items()]
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or document}: {_in_words(each['type'], each['msg'], each['loc'], known)}"
        for each in error.errors(include_url=False)
    )


def _in_words(kind: str, message: str, location: tuple[int | str, ...], known: Sequence[str]) -> str:
    if kind == _UNKNOWN_FIELD:
        return f"there is no such field{did_you_mean(str(location[-1]), known)}"
    return message.removeprefix("Value error, ")
