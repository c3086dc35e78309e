"""Claims that one container must not use together, since kubelet could not keep them apart later.
Pure.

Called by `pod_assessment` before a pod is decided. hami-dra's node drivers refuse such a container
when they prepare the claims (`hami_dra.driver.prepare.container_views`): the edits of a container
depend on all of its claims, and a pod that joins one of them later would be given the devices of
the others too.
"""

from collections.abc import Mapping

from hami_dra.api.core import Pod


def joined_in_a_container(pod: Pod, joinable: Mapping[str, bool], driver_of: Mapping[str, str]) -> str:
    """Return the fix if a container uses a claim that other pods may join together with another
    one.

    Empty if nothing has to change. `joinable`: name in the pod -> whether the claim may be used by
    other pods. `driver_of`: name in the pod -> the driver of hami-dra that all of its devices
    belong to; other claims are left out.
    """
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        used = list(dict.fromkeys(entry.name for entry in container.resources.claims if entry.name in driver_of))
        for name in used:
            others = [other for other in used if other != name and driver_of[other] == driver_of[name]]
            if joinable[name] and others:
                return (
                    f"spec.containers[{container.name}].resources.claims: uses claim {name}, which other pods may join, together with "
                    f"{', '.join(others)}, and such a pod would be given the devices of both: put the requests of this container into one "
                    "claim, or use ResourceClaimTemplates"
                )
    return ""
