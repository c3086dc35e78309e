"""Why devices that could meet a request do not do so now: in use, not healthy, held as a whole.

Called by `why_refused` for nodes that have such devices. Pure; works on columns.
"""

from typing import Final

import numpy as np

from controller.allocation.idle_devices import IdleDevices
from controller.decide.refusal_reason import RefusalReason
from controller.decide.request_words import ROLES, RequestWords, Role
from controller.inventory.products import products_of
from controller.reasons import CATALOGUE
from hami_dra.api import names
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.printable import counted, printable
from hami_dra.vendors.reasons import CODES

_ILL: Final = (names.CARD_NOT_HEALTH, names.CARD_CORDONED)


def passing_reason(words: RequestWords, idle: IdleDevices, nodes: Bools) -> RefusalReason:
    """Return why some nodes, which could meet the request, do not do so now."""
    rows = words.column.possible_on(nodes)
    if not rows.size:  # network-attached: of no node in particular
        rows = np.flatnonzero(idle.codes == 0)
    codes = words.column.reasons(rows)
    counts = np.bincount(codes, minlength=1)
    counts[0] = 0
    number = int(counts.argmax())
    code = CODES[number]
    if not counts[number]:
        return words.reason("search", f"needs {words.devices(int(rows[0]))}", "they do not fit together")
    if code in _ILL:
        return _ill(words, code, rows[codes == number])
    if code == names.EXCLUSIVE_CONFLICT or words.is_whole(int(rows[0])):
        return _tenanted(words, code, rows, nodes)
    if words.count > 1:
        most, node = _most_fitting(words, nodes)
        asked = f"needs {words.devices(int(rows[0]))}"
        return words.reason("devices", asked, f"the most that fit on a node now are {most}{node}", code=code)
    for role in ROLES[:2]:
        if role.code == code:
            return _busy(words, role, rows[codes == number])
    kind = "slots" if code == names.CARD_TIME_SLICING_EXHAUSTED else "devices"
    of_code = int(counts[number])
    text = CATALOGUE[code].about(counted(of_code, "device"), of_code)
    return words.reason(kind, f"needs {words.devices(int(rows[0]))}", text, code=code)


def _most_fitting(words: RequestWords, nodes: Bools) -> tuple[int, str]:
    """Return how many devices fit on the best of the nodes, and ` (its name)`."""
    fitting = np.where(nodes, words.column.fitting[: len(nodes)], -1)
    best = int(fitting.argmax())
    return max(int(fitting[best]), 0) + words.column.network_attached, f" ({words.inventory.nodes.names[best]})"


def _tenanted(words: RequestWords, code: str, rows: Positions, nodes: Bools) -> RefusalReason:
    """Return how many devices without a tenant there are."""
    what = "whole" if words.is_whole(int(rows[0])) else "idle"
    fix = words.cores_left_out(int(rows[0])) if what == "whole" else ""
    if words.count == 1:
        asked = "needs a whole device" if what == "whole" else "needs an idle device"
        best = "the only one has tenants" if len(rows) == 1 else f"all {len(rows)} have tenants"
        return words.reason("whole devices", asked, best, code=code, fix=fix)
    most, node = _most_fitting(words, nodes)
    asked = f"needs {words.count} {what} devices on one node"
    return words.reason("whole devices", asked, f"the most without a tenant are {most}{node}", code=code, fix=fix)


def _busy(words: RequestWords, role: Role, rows: Positions) -> RefusalReason:
    """Return the most that one device has left."""
    devices = words.inventory.devices
    free = role.total(devices)[rows] - role.used(devices)[rows]
    best = int(rows[free.argmax()])
    node = int(devices.node[best])
    where = f" on {words.inventory.nodes.names[node]}" if node >= 0 else ""
    product = products_of(words.inventory).of(best)
    most = f"the most free is {role.text(max(int(free.max()), 0))} ({product}{where})"
    return words.reason(role.kind, f"needs {words.amount(role, best)} on one device", most, code=role.code)


def _ill(words: RequestWords, code: str, rows: Positions) -> RefusalReason:
    """Return the taint of the devices that would do."""
    taint = next(iter(words.inventory.devices.device(int(rows[0])).taints), None)
    best = CATALOGUE[code].about(f"{counted(len(rows), 'device')} that would do", len(rows))
    if taint is not None:
        value = f"={printable(taint.value)}" if taint.value else ""
        best += f" (taint {printable(taint.key)}{value}:{taint.effect})"
    fix = "Remove the Node's annotation hami.io/device-cordon, or wait" if code == names.CARD_CORDONED else ""
    return words.reason("health", f"needs {words.devices(int(rows[0]))}", best, code=code, fix=fix)
