"""Why a claim is not prepared. Every message is the sentence that the pod's event will show: claim, field, fix."""


class PrepareError(Exception):
    """Base."""


class Refused(PrepareError):
    """The claim as it is cannot be prepared here; trying again changes nothing until somebody changes something."""


class NoRoom(Refused):
    """What the claim was given is taken already on this node."""


class NotWritten(PrepareError):
    """The node's disk would not take or give a file; the same call again may succeed."""


class Unreadable(PrepareError):
    """What is prepared on this node cannot be told any more. Nothing is prepared until an operator has acted."""
