"""Conclusion of a comparison, in one or two sentences. Pure; called by `compare`.

Device policy binpack and placing all pods again would free 3 of 16 cards and empty node n4, moving
5 pods; 1 pod would not fit: default/x (2 CardInsufficientMemory).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from controller.insight.whatif.change import DEVICE_AXIS, NODE_AXIS, WEIGHTS_AXIS, Change
from controller.views.comparison import Comparison, Unplaced
from hami_dra.api.printable import counted

_AXES: Final = {NODE_AXIS: "node policy", DEVICE_AXIS: "device policy", WEIGHTS_AXIS: "packing weights"}
_NAMED: Final = 5
"""Largest number of pods or nodes that are named; of more, only the number is given."""


def conclusion(found: Comparison, change: Change, *, waiting: bool) -> str:
    """`waiting`: some pod of the state is pending and finds a node without the change."""
    said = f"{_subject(change)} would {_effect(found)}{_moves(found)}"
    hint = ""
    parts = [said, *_lost(found.lost), *_others(found)]
    if not _anything(found) and change.policies and not change.replace:
        why = "pending pods would get the nodes they get anyway" if waiting else "no pod is pending"
        hint = f" Running pods stay where they are, and {why}; --replace shows the effect of placing all pods again."
    return f"{'; '.join(parts)}.{hint}"


def _subject(change: Change) -> str:
    several = [f"{_AXES[annotation]} {value}" for annotation, value in change.policies]
    if change.replace:
        several.append("placing all pods again")
    if change.without_nodes:
        several.append(f"losing {_named('node', change.without_nodes)}")
    if change.additions:
        several.append("adding these pods")
    if change.preemptors:
        several.append(f"preemption for {_named('pod', change.preemptors)}")
    text = _list(several)
    return text[:1].upper() + text[1:]


def _effect(found: Comparison) -> str:
    cards = [f"free {len(found.freed_cards)}"] if found.freed_cards else []
    if found.taken_cards:
        cards.append(f"take {len(found.taken_cards)}{'' if found.freed_cards else ' more'}")
    said = []
    if cards:
        said.append(f"{_list(cards)} of {counted(found.cards_after, 'device')}")
    if found.emptied_nodes:
        said.append(f"empty {_named('node', found.emptied_nodes)}")
    if found.filled_nodes:
        said.append(f"start using {_named('node', found.filled_nodes)}")
    if said:
        return _list(said)
    return "free no device" if _anything(found) else "change nothing"


def _moves(found: Comparison) -> str:
    said = [f"moving {counted(len(found.moved), 'pod')}"] if found.moved else []
    said += [f"placing {counted(len(found.placed), 'more pod')}"] if found.placed else []
    return f", {_list(said)}" if said else ""


def _lost(lost: Sequence[Unplaced]) -> Iterable[str]:
    if lost:
        pods_of: dict[str, list[str]] = {}
        for each in lost[:_NAMED]:
            pods_of.setdefault(each.error or each.message, []).append(each.pod)
        named = ", ".join(f"{_list(pods)} ({why})" for why, pods in pods_of.items())
        more = f", and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
        yield f"{counted(len(lost), 'pod')} would not fit: {named}{more}"


def _others(found: Comparison) -> Iterable[str]:
    if found.evicted:
        yield f"{_named('pod', [each.pod for each in found.evicted])} would be evicted"
    if found.gone:
        yield f"{counted(len(found.gone), 'pod')} would go with the node" + ("s" if len(found.gone) > 1 else "")
    if still := len(found.unplaced) - len(found.lost):
        yield f"{counted(still, 'pod')} {'has' if still == 1 else 'have'} no place either way"


def _anything(found: Comparison) -> bool:
    return bool(
        found.moved
        or found.placed
        or found.lost
        or found.gone
        or found.evicted
        or found.freed_cards
        or found.taken_cards
        or found.cards_before != found.cards_after
    )


def _named(what: str, several: Sequence[str]) -> str:
    if len(several) > _NAMED:
        return counted(len(several), what)
    return f"{what}{'s' if len(several) > 1 else ''} {_list(several)}"


def _list(several: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(several[:-1]), *several[-1:])))
