"""The selector language of Dynamic Resource Allocation: CEL as kube-scheduler evaluates it,
exactly.

lexer -> parser (with macros) -> checker -> validate -> compiler (closures); library/ holds the
functions.

    selector = compile_selector('device.attributes["gpu.example.com"].productName == "T4"')
    selector.evaluate(DeviceInput.of("gpu.example.com", {"productName": {"string": "T4"}}))

Not implemented: messages (`Type{...}`), which no selector needs.
"""

from hami_dra.cel.attribute import compile_attribute
from hami_dra.cel.device import DeviceInput
from hami_dra.cel.environment import Features
from hami_dra.cel.errors import CompileError, CostLimitExceeded, EvaluationError
from hami_dra.cel.lexer import quote
from hami_dra.cel.meter import KUBERNETES, SHORT, Limits
from hami_dra.cel.selector import Selector, compile_selector
