"""Simulations of a change to the present state: one at a time, in a thread, with a time limit.

Called by `app`. In: the query of the form. Out: `controller.insight.whatif.Comparison`. Running
decisions are not disturbed: the thread gets its own copy, and nothing is written anywhere.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from controller.dashboard.pending import anonymous
from controller.dashboard.source import Source
from controller.insight.manifests import BadManifest
from controller.insight.simulation import SimulationSettings, documents_of
from controller.insight.whatif import DEVICE_AXIS, NODE_AXIS, BadChange, Change, compare
from controller.scoring import DevicePolicy, InvalidPolicy, parse_device_policy, parse_node_policy
from controller.views.comparison import Comparison, Unplaced
from hami_dra.api import names
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object

LONGEST: Final = 60.0
"""Seconds; for clusters where it takes longer, `hami-dra whatif` has no limit."""
DEVICE_CHOICES: Final = (*names.DEVICE_POLICIES, names.FIRST_FIT)
NODE_CHOICES: Final = names.NODE_POLICIES
MOST_NAMED: Final = 20
"""Nodes, or pods, in one field of the form."""
_NO_BUDGETS: Final = (
    "PodDisruptionBudgets do not count here: the controller reads them only if it evicts pods; `hami-dra whatif "
    "--preempt` respects them"
)


class Refused(Exception):
    """The simulation is refused; the message says why."""


class Busy(Refused):
    """Another user's simulation is running."""


class TookTooLong(Refused):
    pass


class WhatIfRuns:
    def __init__(self, source: Source, longest: float = LONGEST) -> None:
        self._source = source
        self._longest = longest
        self._running: asyncio.Task[Comparison] | None = None

    async def run(self, query: Mapping[str, str]) -> Comparison:
        """Run one simulation. Raises Refused."""
        if self._running is not None and not self._running.done():
            raise Busy("another simulation is running")
        change = self._change(query)
        objects = self._source.objects()
        self._running = asyncio.ensure_future(asyncio.to_thread(_compare, objects, change, self._longest))
        try:
            # A client that disconnects does not admit the next simulation before the thread is
            # done.
            found = await asyncio.shield(self._running)
        except (BadChange, BadManifest) as error:
            raise Refused(str(error)) from error
        if change.preemptors and not self._source.reads_budgets:
            found = replace(found, notes=(*found.notes, _NO_BUDGETS))
        return found

    def _change(self, query: Mapping[str, str]) -> Change:
        """Return the change that the form describes. Raises Refused."""
        source, scheduling = self._source, self._source.scheduling
        present = SimulationSettings(
            policies=scheduling.policies,
            first_fit=scheduling.options.first_fit,
            honor_preferences=scheduling.options.honor_preferences,
            scheduler_names=scheduling.scheduler_names,
            kubernetes=source.inventory.kubernetes,
            profiles=source.inventory.profiles,
        )
        node, device = query.get("node-policy", ""), query.get("device-policy", "")
        said = [(NODE_AXIS, node)] if node else []
        said += [(DEVICE_AXIS, device)] if device else []
        first_fit = scheduling.options.first_fit if not device else device == names.FIRST_FIT
        chosen = scheduling.policies
        try:
            if node:
                chosen = replace(chosen, node_policy=parse_node_policy(node, "node-policy"))
            if device and not first_fit:
                keys = parse_device_policy(device, "device-policy")
                chosen = replace(chosen, device_policy=DevicePolicy(keys))
        except InvalidPolicy as error:
            raise Refused(str(error)) from error
        return Change(
            settings=replace(present, policies=chosen, first_fit=first_fit),
            present=present,
            policies=tuple(said),
            override="override" in query,
            without_nodes=_named(query, "without", "nodes can be left out"),
            replace="replace" in query,
            preemptors=tuple(
                pod if "/" in pod else f"default/{pod}" for pod in _named(query, "preempt", "pods can preempt")
            ),
        )


def _named(query: Mapping[str, str], field: str, what: str) -> tuple[str, ...]:
    """Return the names in a field of the form. Raises Refused."""
    found = tuple(dict.fromkeys(query.get(field, "").replace(",", " ").split()))
    if len(found) > MOST_NAMED:
        raise Refused(f"at most {MOST_NAMED} {what} here")
    return found


def by_reason(unplaced: Iterable[Unplaced]) -> list[list[Unplaced]]:
    """Return the pods by the sentence that says why, in the order of the first of each."""
    found: dict[str, list[Unplaced]] = {}
    for each in unplaced:
        found.setdefault(anonymous(each.error or each.message, each.pod), []).append(each)
    return list(found.values())


def _compare(objects: list[tuple[Kind[Any], Object]], change: Change, longest: float) -> Comparison:
    """Compare, in a thread. Raises TookTooLong, BadChange, BadManifest."""
    end = time.monotonic() + longest

    def progress(what: str, done: int, total: int) -> None:
        if time.monotonic() > end:
            raise TookTooLong(f"{what}: {done} of {total} pods after {longest:g} s")

    return compare(documents_of(objects), change, progress)
