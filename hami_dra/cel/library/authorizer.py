"""Kubernetes' authorizer library. It belongs to the environment, but device selectors have no
authorizer.

Only the checker knows the functions; calling one on a dynamic value is a run-time error.
"""

from typing import Final

from hami_dra.cel.library.registry import declare

_METHODS: Final = {
    "path": "Authorizer, string -> PathCheck",
    "group": "Authorizer, string -> GroupCheck",
    "serviceAccount": "Authorizer, string, string -> Authorizer",
    "resource": "GroupCheck, string -> ResourceCheck",
    "subresource": "ResourceCheck, string -> ResourceCheck",
    "namespace": "ResourceCheck, string -> ResourceCheck",
    "name": "ResourceCheck, string -> ResourceCheck",
    "fieldSelector": "ResourceCheck, string -> ResourceCheck",
    "labelSelector": "ResourceCheck, string -> ResourceCheck",
    "allowed": "Decision -> bool",
    "reason": "Decision -> string",
    "error": "Decision -> string",
    "errored": "Decision -> bool",
}


for _method, _signature in _METHODS.items():
    declare(_method, _signature, member=True)
declare("check", "PathCheck, string -> Decision", "ResourceCheck, string -> Decision", member=True)
