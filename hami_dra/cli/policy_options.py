"""Options about policies that several commands share. Errors name the option."""

from collections.abc import Iterable

from controller.scoring.policies import InvalidPolicy, check_wishes
from hami_dra.cli.errors import CommandError
from hami_dra.vendors.registry import WISH_ANNOTATIONS


def default_annotations(options: Iterable[str]) -> dict[str, str]:
    """`--default NAME=VALUE`: annotations that hold where pod, claim, template and class say nothing. Raises CommandError."""
    found: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in WISH_ANNOTATIONS:
            known = ", ".join(sorted(WISH_ANNOTATIONS))
            raise CommandError(f"--default: {option!r} is not NAME=VALUE with one of the annotations {known}")
        found[name] = value
    try:
        check_wishes(found, "--default")
    except InvalidPolicy as error:
        raise CommandError(str(error)) from error
    return found
