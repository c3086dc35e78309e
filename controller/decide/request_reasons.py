"""Why no device can meet one request of a pod: never, even if all were idle, or not now.

Called by `why_refused`. What depends only on the published devices is cached with them
(`IdleDevices`), so it is not computed again for each refused pod. Pure; works on columns.
"""

from typing import Final

import numpy as np

from controller.allocation.idle_devices import IdleDevices
from controller.decide.request_words import ROLES, RequestWords, Role, most_of_a_node
from controller.inventory.products import products_of
from controller.reasons.catalogue import CATALOGUE
from controller.reasons.reason import Reason
from hami_dra.api.arrays import Bools, Positions
from hami_dra.api.printable import counted, listed, printable
from hami_dra.api.resource import DeviceCapacity
from hami_dra.vendors import device_codes
from hami_dra.vendors.device_codes import CODES

_CAPACITIES_NAMED: Final = 8
_NODES_NAMED: Final = 3
_EXPRESSION: Final = 200
"""Characters of selectors in a message."""
_SELECTING: Final = (device_codes.CARD_TYPE_MISMATCH, device_codes.CARD_UUID_MISMATCH, device_codes.MODE_NOT_FIT)


def lasting_reason(words: RequestWords, idle: IdleDevices) -> Reason:
    """Return why no node could meet the request."""
    rows = idle.kept("of class", lambda: idle.rows_of_class)
    if not rows.size:
        asked = f"needs a device of DeviceClass {printable(words.view.device_class.key)}"
        there = idle.kept("all products", lambda: _all_products(words))
        best = f"this cluster has {f'only {there}' if there else 'no devices at all'}"
        fix = "Start its driver, which publishes ResourceSlices, or ask for another class"
        return words.reason("class", asked, best, code=device_codes.NODE_INSUFFICIENT_DEVICE, never=True, fix=fix)
    if idle.possible.size or idle.anywhere:
        return _too_few(words, idle)
    if (free := idle.kept("without node", lambda: rows[idle.codes[rows] == 0])).size:
        return _without_node(words, free)
    # The last check that a device reached: of cards that an annotation excludes, and others that
    # are too small, the size is what is wrong.
    number = idle.kept("last", lambda: int(idle.codes[rows].max()))
    of_code = idle.kept("of code", lambda: rows[idle.codes[rows] == number])
    code = CODES[number]
    if code in _SELECTING:
        return _selected(words, code, idle.kept("products", lambda: products_of(words.inventory).counted(rows)))
    return _too_small(words, code, of_code, some_excluded=len(of_code) < len(rows))


def _all_products(words: RequestWords) -> str:
    """Return the products of all devices of the cluster, with their numbers."""
    return products_of(words.inventory).counted(np.flatnonzero(words.inventory.devices.active))


def _too_few(words: RequestWords, idle: IdleDevices) -> Reason:
    best = idle.kept("best node", lambda: int(idle.per_node.argmax()))
    most, node = int(idle.per_node[best]) + idle.anywhere, words.inventory.nodes.names[best]
    such = " such devices" if idle.kept("most of class", lambda: int(idle.of_class.max())) > most else ""
    row = idle.kept("possible", lambda: int(np.flatnonzero(idle.codes == 0)[0]))
    asked, code = f"needs {words.devices(row)}", device_codes.NODE_INSUFFICIENT_DEVICE
    return words.reason("devices", asked, most_of_a_node(most, node, such=such), code=code, never=True)


def _without_node(words: RequestWords, rows: Positions) -> Reason:
    """Return where the devices are that could be given: their slices name nodes without an object."""
    nodes = dict.fromkeys(words.inventory.devices.device(row).slice.spec.node_name or "" for row in rows.tolist())
    one = len(rows) == 1
    that = f"{'the device' if one else f'the {len(rows)} devices'} that could give it {'is' if one else 'are'}"
    where = "a node that does not exist" if len(nodes) == 1 else "nodes that do not exist"
    best = f"{that} on {where} ({listed(sorted(map(printable, nodes)), _NODES_NAMED)})"
    return words.reason("node", f"needs {words.devices(int(rows[0]))}", best, fix="See kubectl get nodes")


def _too_small(words: RequestWords, code: str, rows: Positions, *, some_excluded: bool) -> Reason:
    """Return the figures of the largest device. `rows`: the devices that only this excludes."""
    devices = words.inventory.devices
    for role in ROLES:
        if role.code == code:
            totals = role.total(devices)
            best = int(rows[totals[rows].argmax()])
            on = "one device" if words.count == 1 else f"each of {words.count} devices"
            allowed = " that the pod's selectors and annotations allow" if some_excluded else ""
            asked = f"needs {words.wanted(role, devices.device(best).profile)} on {on}"
            most = f"the largest{allowed} has {role.text(int(totals[best]))} ({products_of(words.inventory).of(best)})"
            return words.reason(role.kind, asked, most, code=code, never=True)
    return _unpublished(words, code, int(rows[0]))


def _unpublished(words: RequestWords, code: str, row: int) -> Reason:
    """Return the capacities that there are, where the request names another one, or an amount that
    no device may give.
    """
    requests = words.view.capacity_requests
    published = sorted(words.inventory.devices.device(row).spec.capacity)
    there = f"published: {', '.join(map(printable, published[:_CAPACITIES_NAMED])) or 'none'}"
    for name in requests:
        if name not in published:
            asked = f'capacity "{printable(name)}" is not published'
            fix = "Correct the name in capacity.requests"
            return words.reason("capacity", asked, there, code=code, never=True, fix=fix)
    amounts = ", ".join(f"{printable(name)}={printable(text)}" for name, text in requests.items())
    asked = f"asks for {amounts or 'all capacities'}, which the requestPolicy of no device allows"
    capacity = words.inventory.devices.device(row).spec.capacity
    allowed = [f"{printable(name)} {_allowed(capacity[name])}" for name in requests or published]
    best = f"allowed: {listed(allowed, _CAPACITIES_NAMED)}" if allowed else there
    return words.reason("capacity", asked, best, code=code, never=True)


def _allowed(capacity: DeviceCapacity) -> str:
    """Return which amounts of a capacity may be requested: `1Mi to 16Gi in steps of 1Mi`."""
    policy = capacity.request_policy
    values = policy.valid_values if policy is not None else ()
    limits = policy.valid_range if policy is not None else None
    if values:
        return listed([printable(str(each)) for each in values], _CAPACITIES_NAMED)
    if limits is None:
        return f"up to {printable(str(capacity.value))}"
    step = f" in steps of {printable(str(limits.step))}" if limits.step is not None else ""
    return f"{printable(str(limits.min))} to {printable(str(limits.max or capacity.value))}{step}"


def _selected(words: RequestWords, code: str, there: str) -> Reason:
    """Return which annotation or selector leaves no device. `there`: the products that there are.

    Annotations come first: where the webhook converted the pod, a selector says the same in CEL.
    """
    if words.annotations:
        named = " and ".join(f"{name}={printable(value)}" for name, value in words.annotations)
        several = len(words.annotations) > 1
        asked = f"annotation{'s' if several else ''} {named} exclude{'' if several else 's'} all devices"
        kind, fix = "annotation", f"Correct the annotation{'s' if several else ''}"
        if code == device_codes.CARD_UUID_MISMATCH:
            fix += "; hami-dra status -o wide lists the UUIDs"
    else:
        expressions = " && ".join(each.expression for each in words.view.selectors)
        asked = f"selector {printable(expressions, _EXPRESSION)} matches no device"
        kind, fix = "selector", "Correct the selector"
    return words.reason(kind, asked, f"there are {there}", code=code, never=True, fix=fix)


# --- not now ----------------------------------------------------------------------------------


def passing_reason(words: RequestWords, idle: IdleDevices, nodes: Bools) -> Reason:
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
    if CATALOGUE[code].state:
        return _ill(words, code, rows[codes == number])
    if code == device_codes.EXCLUSIVE_CONFLICT or words.is_whole(int(rows[0])):
        return _tenanted(words, code, rows, nodes)
    if words.count > 1:
        most, node = _most_fitting(words, nodes)
        asked = f"needs {words.devices(int(rows[0]))}"
        return words.reason("devices", asked, f"the most that fit on a node now are {most}{node}", code=code)
    for role in ROLES[:2]:
        if role.code == code:
            return _busy(words, role, rows[codes == number])
    kind = "slots" if code == device_codes.CARD_TIME_SLICING_EXHAUSTED else "devices"
    of_code = int(counts[number])
    text = CATALOGUE[code].about(counted(of_code, "device"), of_code)
    return words.reason(kind, f"needs {words.devices(int(rows[0]))}", text, code=code)


def _most_fitting(words: RequestWords, nodes: Bools) -> tuple[int, str]:
    """Return how many devices fit on the best of the nodes, and ` (its name)`."""
    fitting = np.where(nodes, words.column.fitting[: len(nodes)], -1)
    best = int(fitting.argmax())
    return max(int(fitting[best]), 0) + words.column.network_attached, f" ({words.inventory.nodes.names[best]})"


def _tenanted(words: RequestWords, code: str, rows: Positions, nodes: Bools) -> Reason:
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


def _busy(words: RequestWords, role: Role, rows: Positions) -> Reason:
    """Return the most that one device has left."""
    devices = words.inventory.devices
    free = role.total(devices)[rows] - role.used(devices)[rows]
    best = int(rows[free.argmax()])
    node = int(devices.node[best])
    where = f" on {words.inventory.nodes.names[node]}" if node >= 0 else ""
    product = products_of(words.inventory).of(best)
    most = f"the most free is {role.text(max(int(free.max()), 0))} ({product}{where})"
    return words.reason(role.kind, f"needs {words.amount(role, best)} on one device", most, code=role.code)


def _ill(words: RequestWords, code: str, rows: Positions) -> Reason:
    """Return the taint of the devices that would do."""
    taint = next(iter(words.inventory.devices.device(int(rows[0])).taints), None)
    best = CATALOGUE[code].about(f"{counted(len(rows), 'device')} that would do", len(rows))
    if taint is not None:
        value = f"={printable(taint.value)}" if taint.value else ""
        best += f" (taint {printable(taint.key)}{value}:{taint.effect})"
    asked = f"needs {words.devices(int(rows[0]))}"
    return words.reason("health", asked, best, code=code, fix=CATALOGUE[code].fix)
