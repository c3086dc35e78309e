"""Which pods of a ReplicaSet should go first when it is scaled in: those whose end frees most. Pure.

The ReplicaSet controller deletes the pods of the lowest `controller.kubernetes.io/pod-deletion-cost`
first, among pods that are equally ready. A cost depends on the pod's node alone:

    1,000,000 x pods of others on its devices    (at most 99): the devices stay in use without it
       10,000 x pods of others on its node       (at most 99): the node does
          100 x further pods of its own there    (at most 99): the node is free after all of them
            1 x place of its device among those, by pods (at most 99): pods that share one go together

Two nodes of two devices. On `a` two pods of the set share device 0 and a third one has device 1; on
`b` a pod of the set shares device 0 with a pod of another owner:

    a: 201, 201, 200       b: 1,010,000

Scaled in by one, device 1 of `a` is free; by three, node `a`; `b` comes last, where nothing is free.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from controller.inventory.model import DeviceId
from hami_dra.api.core import Pod
from hami_dra.api.meta import controller_of

_MOST: Final = 99


def is_of_replica_set(pod: Pod) -> bool:
    return any(owner.controller and owner.kind == "ReplicaSet" for owner in pod.metadata.owner_references)


def deletion_costs(held: Collection[tuple[Pod, Iterable[DeviceId]]]) -> Mapping[str, int]:
    """Return the costs by UID of the pods of ReplicaSets on one node.

    `held`: its pods that hold devices, with these.
    """
    of_owner: dict[str, dict[str, frozenset[DeviceId]]] = {}
    for pod, devices in held:
        of_owner.setdefault(controller_of(pod) or pod.metadata.uid, {})[pod.metadata.uid] = frozenset(devices)
    all_sets = Counter(devices for pods in of_owner.values() for devices in pods.values())
    costs = {}
    for owner in {controller_of(pod) for pod, _ in held if is_of_replica_set(pod)}:
        own = of_owner[owner]
        sets = Counter(own.values())
        sharing = {
            devices: sum(number - sets[each] for each, number in all_sets.items() if not each.isdisjoint(devices))
            for devices in sets
        }
        users = Counter(device for devices in own.values() for device in devices)
        places = {
            device: place for place, device in enumerate(sorted(users, key=lambda each: (users[each], str(each))))
        }
        for uid, devices in own.items():
            place = min(map(places.__getitem__, devices), default=0)
            parts = sharing[devices], len(held) - len(own), len(own) - 1, place
            costs[uid] = sum(min(part, _MOST) * 100**power for power, part in enumerate(reversed(parts)))
    return costs
