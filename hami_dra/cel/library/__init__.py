"""The functions of the DRA environment. Importing this package fills library.registry."""

from typing import Final

from hami_dra.cel.library import (
    authorizer,
    conversions,
    core,
    formats,
    formatting,
    lists,
    network,
    quantities,
    text,
    times,
    urls,
)
from hami_dra.cel.library.registry import Overload, functions

_FIRST: Final = {
    "indexOf": "string",
    "lastIndexOf": "string",
    "compareTo": "kubernetes.Quantity",
    "isGreaterThan": "kubernetes.Quantity",
    "isLessThan": "kubernetes.Quantity",
}
"""Function → receiver of the overload that Kubernetes declares first. The order matters while the
type of a variable is open: in `{}.all(v, v.indexOf("a") == 0)` the variable becomes a string, the
receiver of the first overload.
"""
for _name, _receiver in _FIRST.items():
    functions[_name].sort(key=lambda overload: overload.params[0].name != _receiver)
