"""Comparison of two simulations of one state, with and without the change.

Called through `controller.insight.whatif`. The simulation without the change continues from the
present state, so waiting pods are placed there, too. The inventory's columns, maintained by the
ledger, say whether a card is held. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from controller.insight.simulation import Played, SimulatedCluster, devices_of, play
from controller.insight.whatif.change import BadChange, Change, Changed, SimulatedState, apply, state_of
from controller.insight.whatif.conclusion import conclusion
from controller.views.comparison import Comparison, Eviction, Move, NodeChange, Placement, Unplaced, packing_changes
from controller.views.overview import CardTable, NodeView, PlacedPod, overview
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.printable import counted
from hami_dra.api.similar_names import similar
from hami_dra.kube.documents import Document

OnProgress = Callable[[str, int, int], None]
"""(current step, pods done, pods in total)"""


def compare(
    documents: Iterable[Document], change: Change, progress: OnProgress = lambda _what, _done, _total: None
) -> Comparison:
    """Return how the states differ. Raises BadManifest, BadChange."""
    if change.is_nothing:
        raise BadChange(
            "the change is empty: give a policy, pods to add, nodes to remove, pods that preempt, or place all pods again"
        )
    state = state_of(documents)
    present, settings = change.sides
    changed = apply(state, change)
    before = _Side(
        state, play(state.gathered, present, lambda done, total: progress("as it is", done, total)), frozenset()
    )
    after = _Side(
        state,
        play(changed.gathered, settings, lambda done, total: progress("with the change", done, total)),
        changed.replaced,
    )
    _check_preemptors(state, change, after.played)
    found = _Differences(state, change, changed, before, after)
    return found.comparison([*before.played.report.notes, *after.played.report.notes])


def _check_preemptors(state: SimulatedState, change: Change, after: Played) -> None:
    waiting = {entry["pod"] for entry in (*after.report.placements, *after.report.unplaced)}
    for key in change.preemptors:
        if key not in waiting:
            pod = state.pods.get(key)
            problem = f"no pod of this name waits{similar(key, waiting)}"
            if pod is not None and pod.spec.node_name:
                problem = f"it waits for no node (it is on {pod.spec.node_name})"
            raise BadChange(f"preemption for pod {key}: {problem}")


class _Side:
    """Results of one simulation. `replaced`: pods that it placed again."""

    def __init__(self, state: SimulatedState, played: Played, replaced: frozenset[str]) -> None:
        self.played = played
        self.placements = _placements(state, played, replaced)
        view: SimulatedCluster = played.view
        self.cards = _cards(view)
        seen = overview(view.inventory, (), ())
        self.nodes: Mapping[str, NodeView] = {each.node: each for each in seen.nodes}
        self.packing = seen.packing
        self.held = {card for card, (_, held) in self.cards.items() if held}
        self.holding_nodes = {node for node, held in self.cards.values() if held and node}
        self.pods = Counter(each.node for each in self.placements.values() if each.devices)


def _cards(view: SimulatedCluster) -> Mapping[str, tuple[str, bool]]:
    """Return card id → (its node, whether any of it is held)."""
    table = CardTable(view.inventory)
    table.refresh()
    devices, nodes = view.inventory.devices, view.inventory.nodes
    held = table.held
    found = {}
    for row in table.cards.tolist():
        node = int(devices.node[row])
        found[str(devices.device(row).id)] = (nodes.names[node] if node >= 0 else "", bool(held[row]))
    return found


def _placements(state: SimulatedState, played: Played, replaced: frozenset[str]) -> Mapping[str, Placement]:
    """Return the placements of all pods that have claims and a node."""
    found: dict[str, Placement] = {}
    for key in played.view.pods:
        now = state.pods.get(key)
        if now is not None and now.spec.node_name and key not in replaced and claim_keys(now):
            placed = PlacedPod.of(now, state.allocated.get)
            found[key] = Placement(pod=key, node=placed.node, devices=placed.devices, running=True)
    for entry in played.report.placements:
        if entry["claims"]:
            key = entry["pod"]
            found[key] = Placement(pod=key, node=entry["node"], devices=devices_of(entry), running=False)
    return found


class _Differences(Struct, frozen=True):
    state: SimulatedState
    change: Change
    changed: Changed
    before: _Side
    after: _Side

    def comparison(self, notes: list[str]) -> Comparison:
        before, after = self.before, self.after
        there = before.cards.keys() & after.cards.keys()
        kept_nodes = {node for node, _ in after.cards.values()}
        found = Comparison(
            before=tuple(before.placements[key] for key in sorted(before.placements)),
            after=tuple(after.placements[key] for key in sorted(after.placements)),
            moved=self._moved(),
            placed=tuple(
                after.placements[key] for key in sorted(after.placements) if key not in before.played.view.pods
            ),
            unplaced=self._unplaced(),
            gone=self.changed.gone,
            evicted=self._evicted(),
            cards_before=len(before.cards),
            cards_after=len(after.cards),
            held_before=len(before.held),
            held_after=len(after.held),
            freed_cards=tuple(sorted((before.held - after.held) & there)),
            taken_cards=tuple(sorted(after.held - before.held)),
            emptied_nodes=tuple(sorted((before.holding_nodes - after.holding_nodes) & kept_nodes)),
            filled_nodes=tuple(sorted(after.holding_nodes - before.holding_nodes)),
            nodes=self._nodes(),
            vendors=packing_changes(before.packing, after.packing),
            conclusion="",
            notes=tuple(dict.fromkeys([*notes, *self._remarks()])),
        )
        text = conclusion(found, self.change, waiting=bool(before.played.report.placements))
        return msgspec.structs.replace(found, conclusion=text)

    def _moved(self) -> tuple[Move, ...]:
        before, after = self.before.placements, self.after.placements
        return tuple(
            Move(
                pod=key,
                from_node=before[key].node,
                from_devices=before[key].devices,
                to_node=after[key].node,
                to_devices=after[key].devices,
            )
            for key in sorted(before.keys() & after.keys())
            if (before[key].node, before[key].devices) != (after[key].node, after[key].devices)
        )

    def _unplaced(self) -> tuple[Unplaced, ...]:
        known = self.state.pods.keys() | {entry["pod"] for entry in self.before.played.report.unplaced}
        there = self.before.played.view.pods
        return tuple(
            Unplaced(
                pod=entry["pod"],
                was_on=there[entry["pod"]].spec.node_name if entry["pod"] in there else "",
                new=entry["pod"] not in known and entry["pod"] not in there,
                reasons=entry["reasons"],
                message=entry["message"],
                error=entry["error"],
            )
            for entry in self.after.played.report.unplaced
        )

    def _evicted(self) -> tuple[Eviction, ...]:
        placed = self.before.placements
        return tuple(
            Eviction(pod=victim, node=placed[victim].node if victim in placed else "", preemptor=entry["pod"])
            for entry in self.after.played.report.preemptions or ()
            for victim in entry["victims"]
        )

    def _nodes(self) -> tuple[NodeChange, ...]:
        before, after = self.before, self.after
        return tuple(
            NodeChange(
                node=name,
                before=before.nodes.get(name),
                after=after.nodes.get(name),
                pods_before=before.pods[name],
                pods_after=after.pods[name],
            )
            for name in sorted(before.nodes.keys() | after.nodes.keys())
        )

    def _remarks(self) -> Iterable[str]:
        for entry in self.after.played.report.preemptions or ():
            if waits_for := entry.get("waitsFor"):
                yield f"pod {entry['pod']} has its place once pods are gone that terminate already: {', '.join(waits_for)}"
        if self.changed.overruled:
            yield (
                f"{counted(self.changed.overruled, 'object')} with another policy by annotation {'keeps' if self.changed.overruled == 1 else 'keep'} it; "
                "with --override-annotations the policy applies to them too"
            )
