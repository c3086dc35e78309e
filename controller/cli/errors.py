"""The error of a command whose input the user must change."""


class CommandError(Exception):
    """Bad input: the message names the file or option, the field and the fix. Exit code 2.

    Several arguments are several messages, each a line.
    """
