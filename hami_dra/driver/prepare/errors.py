"""Reasons why a claim is not prepared. Every message is the sentence that the pod's event will
show: claim, field, fix.
"""


class PrepareError(Exception):
    """Base class."""


class Refused(PrepareError):
    """The claim cannot be prepared here as it is; retries fail until something is changed."""


class NoRoom(Refused):
    """The claim's devices are in use already on this node."""


class NotWritten(PrepareError):
    """A file could not be written to or read from the node's disk; the same call may succeed later."""


class Unreadable(PrepareError):
    """The prepared claims of this node are unknown. Nothing is prepared until an operator has acted."""
