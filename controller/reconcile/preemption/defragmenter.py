"""Makes room for a unit that has waited for long by moves (`--defrag=execute`): pods that are evicted, one
after the other, while a place is held for the pod that replaces each.

| a pod that moves | then |
|---|---|
| is evicted, once all before it have arrived | the pod that replaces it, new and of the same controller, gets the place |
| is gone, and the other one is ready where it was to go | it has arrived |
| anything else | the unit's place is given up; what was evicted keeps its own place |

What is held for a pod that moves counts as a pod of its own, by other UIDs than those of the pod and its
claims, which count where they are.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec.structs import replace

from controller.cluster.incremental import LruCache
from controller.decide import AllowedNodes, Decision, Options, decide
from controller.gangs import UnitDecision
from controller.moves import Movability, Movable, Mover, Moves, Places
from controller.preemption import Budgets, OutOfSteps, Preemption, must_run_until
from controller.reconcile.binding import AssumedPods
from controller.reconcile.preemption.holds import Hold, Holds, Transfer, transfer_of
from controller.reconcile.preemption.waits import Waits
from controller.reconcile.queueing import PodAssessor, QueuedUnit, Triggers
from controller.reconcile.runtime import Context
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_refs, is_created_by_us
from hami_dra.api.podstate import is_bound, is_live, is_ready

log = logging.getLogger(__name__)

_STEPS: Final = 1_000
"""Decisions of a search in a cluster of up to 1,000 nodes: 0.2 s of CPU."""
_NODES: Final = 64
"""Nodes on which pods are assessed for a move."""
_ARRIVES: Final = 900.0
"""Seconds in which a pod that moves must be ready at its new place."""
_LEAST: Final = 300.0
"""Seconds that a pod has run before it moves, if it says nothing: none moves twice for one unit."""
_PAUSES: Final = (60.0, 600.0)
"""Seconds until moves are searched again after none were found, at first and at most; they double."""
_RESTS: Final = (600.0, 3_600.0)
"""Seconds in which no pods of a namespace move after one of them could not, at first and at most; they double."""
_TURN: Final = 2.0
"""Seconds of rest after a search of all steps: searches take a tenth of the time, however many units wait."""
_NONE_KEPT: Final = 1_000
_RETRY: Final = 1.0


class _Fruitless(NamedTuple):
    """What is known of a search that found no moves. Moments are seconds of the monotonic clock."""

    until: float = 0.0
    """No moves are searched until then."""
    pause: float = 0.0
    begin: float = math.inf
    """When pods that are too young now have run for long enough to move."""


@dataclass(eq=False)
class Defragmenter:
    """`preemption`: as it is now for a unit of a namespace; `give_up`: ends a hold, and says why; `go_on`: evicts
    the next pod of a hold.
    """

    context: Context
    options: Options
    assessor: PodAssessor
    holds: Holds
    assumed_pods: AssumedPods
    triggers: Triggers
    preemption: Callable[[str], Preemption]
    give_up: Callable[[Hold, str], None]
    go_on: Callable[[Hold], None]
    _none: LruCache[_Fruitless] = field(default_factory=lambda: LruCache(_NONE_KEPT))
    """By signature."""
    _transfers: dict[str, Transfer] = field(default_factory=dict)
    """UID of a pod that moves → how, until it has arrived or its place is given up."""
    _rests_until: float = 0.0
    """After moves that came to nothing none are begun until then."""
    _rests: LruCache[_Fruitless] = field(default_factory=lambda: LruCache(_NONE_KEPT))
    """By namespace: a pod that is created there may take the place of one that moves."""
    _free_at: float = 0.0
    """When moves may be searched again, for any unit."""
    _last_turn: float = 0.0
    """Of the units that wait for that: when the last one looks again."""
    _successors: dict[str, Transfer] = field(default_factory=dict)
    """By the UID of the pod that replaces it."""

    def plan(
        self, unit: QueuedUnit, digest: bytes, preemption: Preemption, most: int
    ) -> tuple[UnitDecision, Moves] | None:
        """Return where the unit fits after at most this number of moves. Raises SliceSpent."""
        now = self.context.clock.monotonic()
        before = self._none.find(digest) or _Fruitless()
        if now < max(before.until, self._rests_until, self._free_at) or self._transfers:
            return None
        young: list[Pod] = []
        found = self._search(unit, preemption, most, young)
        if found is None:
            pause = min(max(2 * before.pause, _PAUSES[0]), _PAUSES[1])
            later = self._search(unit, preemption, most) if young else None
            wall, moved = preemption.rules.now, later[1].moved if later is not None else ()
            old = [must_run_until(each.movable.pod, wall, _LEAST) for each in moved]
            begin = now + max(old) - wall + _RETRY if old else math.inf
            self._none.put(digest, _Fruitless(min(now + pause, begin), pause, begin))
        return found

    def note(self, hold: Hold | None, digest: bytes) -> None:
        """Let a place that is reserved for a unit say when pods may move for it."""
        if hold is not None:
            hold.moves_begin = (self._none.find(digest) or _Fruitless()).begin

    def again(self, digest: bytes) -> Waits | None:
        """Return when moves are searched again for a unit."""
        now, until = self.context.clock.monotonic(), (self._none.find(digest) or _Fruitless()).until
        at = until if now < until else now + _PAUSES[0]
        if now < self._free_at and now >= until:
            self._last_turn = at = min(max(self._last_turn, now) + _TURN, now + _PAUSES[1])
        return Waits(review=max(self._rests_until, at), keeps_gate=False)

    def _search(
        self, unit: QueuedUnit, preemption: Preemption, most: int, young: list[Pod] | None = None
    ) -> tuple[UnitDecision, Moves] | None:
        """Return what `plan` does. `young`: gets the pods that only have to run longer; None: as if they had."""
        old = dataclasses.replace(preemption, rules=replace(preemption.rules, now=preemption.rules.now + _LEAST))
        inventory = self.context.inventory
        left, cost = _STEPS, 1 + inventory.nodes.size // 1_000
        known: dict[str, Movable | None] = {pod.metadata.uid: None for hold in self.holds for pod in hold.leaving}

        def charge(decisions: int) -> None:
            nonlocal left
            left -= decisions * cost
            if left < 0:
                raise OutOfSteps

        def movable_of(pod: Pod) -> Movable | None:
            uid = pod.metadata.uid
            if uid not in known:
                movable = self._movable(pod, old if young is None else preemption)
                known[uid] = movable if isinstance(movable, Movable) else None
                if known[uid] is None and young is not None and isinstance(self._movable(pod, old), Movable):
                    young.append(pod)
            return known[uid]

        mover = Mover(inventory, (), replace(self.options, says_why=False, report_nodes=1), 0, charge=charge)
        places = Places(preemption, unit.unit, mover, movable_of, _NODES)
        best = places.best(most)
        if mover.is_cut:
            log.debug("pod %s: not all moves that may make room for it were tried", unit.pod.key)
        self._free_at = max(self._free_at, self.context.clock.monotonic()) + _TURN * (_STEPS - max(left, 0)) / _STEPS
        return best

    def _movable(self, pod: Pod, preemption: Preemption) -> Movable | str | None:
        """Return the pod as one that may be moved, or why it stays; None: it holds no devices."""
        movability = Movability(self.assessor.view, self.assessor.settings, preemption, labelled=True, least=_LEAST)
        if not movability.is_labelled(pod):
            return "it is not labelled"
        if self._is_resting(pod.metadata.namespace):
            return "another pod of its namespace could not move"
        if any(not ref.template and not is_created_by_us(pod, ref) for ref in claim_refs(pod)):
            return "it uses a ResourceClaim by its name"
        if not is_ready(pod):
            return "it is not ready, and the pod that replaces it may never be"
        return movability.of(pod)

    # --- places of pods that move -----------------------------------------------------------------

    def transfers(self, moves: Moves) -> tuple[Transfer, ...]:
        """Hold the place of each pod that moves."""
        found = tuple(map(transfer_of, moves.moved))
        for transfer in found:
            self._transfers[transfer.pod.metadata.uid] = transfer
            self.assumed_pods.begin(transfer.placeholder, transfer.decision)
        return found

    def set_out(self, transfer: Transfer) -> str | float:
        """Return until when a pod that is evicted now must have arrived, or why it must not be any more: it is
        protected by now, or its place is not what it was.
        """
        pod, inventory = self.context.informers.present(transfer.pod), self.context.inventory
        node = transfer.decision.node
        if pod is None:
            return "it has ended"
        preemption = self.preemption(pod.metadata.namespace)
        # of budgets the API server knows more
        movable = self._movable(pod, dataclasses.replace(preemption, budgets=Budgets()))
        if not isinstance(movable, Movable):
            self._rest(pod.metadata.namespace)
            return movable or "it holds no devices"
        within = AllowedNodes.of_rows(inventory.nodes.rows_of([node]), inventory.nodes.size)
        with inventory.trial() as trial:
            placeholder = transfer.placeholder.metadata.uid
            trial.remove_all([placeholder, movable.uid], [*transfer.decision.holdings, *movable.claims])
            answer = decide(inventory, replace(movable.request, allowed_nodes=within), self.options)
        if not isinstance(answer, Decision):
            return f"the pod that replaces it would not fit on {node} any more"
        return self.context.clock.monotonic() + _ARRIVES

    def late(self, transfer: Transfer) -> None:
        if self._transfers.get(transfer.pod.metadata.uid) is transfer:
            self._surprise(transfer, f"pod {transfer.pod.key} has not been replaced in time")

    def stop(self) -> None:
        """End the term: nothing is held any more."""
        for transfer in self._transfers.values():
            self._uncharge(transfer)

    def end(self, hold: Hold, *, is_placed: bool) -> None:
        """Give back what is held for pods that are not evicted; the others are still to come."""
        is_blamed = any(self._is_resting(each.pod.metadata.namespace) for each in hold.transfers)
        if not is_placed and not is_blamed and not all(each.has_arrived for each in hold.transfers):
            self._rests_until = self.context.clock.monotonic() + _PAUSES[1]
        for transfer in hold.transfers:
            if not transfer.is_begun:
                self._forget(transfer)

    def resume(self, unit: QueuedUnit, preemption: Callable[[], Preemption]) -> UnitDecision | Waits | None:
        """Return where a pod that replaces one that moves is to be bound, or that it waits; None: it is no such pod."""
        transfer = self._successors.get(unit.pod.metadata.uid) if unit.gang is None else None
        if transfer is None or not transfer.is_held:
            return None
        nodes, node = self.context.inventory.nodes, transfer.decision.node
        within = AllowedNodes.of_rows(nodes.rows_of([node]), nodes.size)
        with self.context.inventory.trial() as trial:
            trial.remove(transfer.placeholder.metadata.uid, [*transfer.decision.holdings])
            answer = preemption().without(unit.unit.within(within))
        if answer is not None:
            return replace(answer, placed=unit.unit.as_asked(answer.placed))
        usage = self.context.inventory.usage
        if self.context.informers.present(transfer.pod) is not None or any(map(usage.counted, transfer.claims)):
            # a quota may count both
            why = f"its place on {node} is held until pod {transfer.pod.key} has ended"
            return Waits(self.context.clock.monotonic() + _RETRY, why)
        self._surprise(transfer, f"pod {unit.pod.key} does not fit on {node}, where it was to go")
        return None

    def placed(self, pod: Pod) -> None:
        """Give the place of a pod that is bound now to it."""
        if (transfer := self._successors.get(pod.metadata.uid)) is not None:
            self._release(transfer)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if not self._transfers:
            return
        pod = new or old
        assert pod is not None
        uid = pod.metadata.uid
        if new is not None and (old is None or old.metadata.uid != uid):
            self._welcome(new)
        if (leaving := self._transfers.get((old or pod).metadata.uid)) is not None:
            self._look(leaving)
        if (transfer := self._successors.get(uid)) is None:
            return
        if pod.spec.node_name not in ("", node := transfer.decision.node):
            self._surprise(transfer, f"pod {pod.key} went to {pod.spec.node_name}, and not to {node}")
        elif new is not None and (is_live(new) or _has_arrived(new)):
            self._look(transfer)
        elif transfer.is_held:  # another one will be created
            del self._successors[uid]
            transfer.successor = None
        else:
            self._surprise(transfer, f"pod {pod.key} has ended on {node}")

    def _welcome(self, pod: Pod) -> None:
        """Note which pod replaces one that moves now."""
        for transfer in self._transfers.values():
            if transfer.is_begun and transfer.successor is None and transfer.is_replaced_by(pod):
                transfer.successor = pod
                self._successors[pod.metadata.uid] = transfer
                return

    def _look(self, transfer: Transfer) -> None:
        """Go on with the next pod once this one is gone and the one that replaces it is ready."""
        present = self.context.informers.present
        old, new = present(transfer.pod), None if transfer.successor is None else present(transfer.successor)
        if transfer.is_held and (old is None or not is_bound(old)):
            self._charge(transfer)
        if new is None or not new.spec.node_name or not _has_arrived(new) or (old is not None and is_bound(old)):
            return
        transfer.has_arrived = True
        self._forget(transfer)
        log.info("pod %s: moved to %s, as %s", transfer.pod.key, transfer.decision.node, new.key)
        for hold in self.holds:
            if transfer in hold.transfers:
                self.go_on(hold)

    def _is_resting(self, namespace: str) -> bool:
        rest = self._rests.find(namespace)
        return rest is not None and self.context.clock.monotonic() < rest.until

    def _rest(self, namespace: str) -> None:
        """Let no pods of a namespace move for a while: those of others may."""
        pause = min(max(2 * (self._rests.find(namespace) or _Fruitless()).pause, _RESTS[0]), _RESTS[1])
        self._rests.put(namespace, _Fruitless(self.context.clock.monotonic() + pause, pause))

    def _surprise(self, transfer: Transfer, why: str) -> None:
        self._rest(transfer.pod.metadata.namespace)
        self._forget(transfer)
        for hold in self.holds:
            if transfer in hold.transfers:
                self.give_up(hold, why)

    def _forget(self, transfer: Transfer) -> None:
        self._transfers.pop(transfer.pod.metadata.uid, None)
        if transfer.successor is not None:
            self._successors.pop(transfer.successor.metadata.uid, None)
        self._release(transfer)

    def _charge(self, transfer: Transfer) -> None:
        """Let a place count against the quotas of its namespace: nobody else gets what the pod has left of them."""
        for uid in transfer.decision.holdings:
            self.context.inventory.quotas.seen(uid, transfer.pod.metadata.namespace)

    def _uncharge(self, transfer: Transfer) -> None:
        for uid in transfer.decision.holdings:
            self.context.inventory.quotas.leave(uid)

    def _release(self, transfer: Transfer) -> None:
        if transfer.is_held:
            transfer.is_held = False
            self._uncharge(transfer)
            self.assumed_pods.end(transfer.placeholder)
            self.triggers.released(transfer.placeholder)


def _has_arrived(pod: Pod) -> bool:
    return pod.status.phase == "Succeeded" or is_ready(pod)
