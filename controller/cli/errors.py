"""The error of a command whose input the user must change."""

from hami_dra.api.errors import InputError


class CommandError(InputError):
    """Bad input of a command; the message names the option."""
