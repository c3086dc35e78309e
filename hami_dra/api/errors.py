"""Errors about what people write: commands print their message and end with exit code 2."""


class InputError(Exception):
    """Bad input: the message names the file, option or object, the field and the fix. Never retried.

    Several arguments are several messages, each a line.
    """


class ConfigError(InputError):
    """The operator's settings cannot work."""
