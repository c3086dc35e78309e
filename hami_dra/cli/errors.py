"""What a command raises when its user must change something."""


class CommandError(Exception):
    """Bad input: the message names the file or option, the field and the fix. Exit code 2."""
