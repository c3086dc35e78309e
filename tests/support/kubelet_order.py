"""How kubelet and containerd turn a driver's answers into what a container gets: the oracle for views.

kubelet 1.37 pkg/kubelet/cm/dra (GetResources, cdiDevicesAsList): claims of a container in random order, in a claim the requests as the
container lists them, for each request the devices that name it in the order of the answer. containerd 2: repeated ids are dropped, the
first stays; later environment replaces earlier one; device nodes and mounts add up.
"""

from itertools import permutations


def requests_of(pod, container):
    """Claim name → request names in order ("" = all), as kubelet collects them."""
    found = {}
    for pod_claim in pod.spec.resource_claims:
        listed = [entry.request for entry in container.resources.claims if entry.name == pod_claim.name]
        if listed:
            found.setdefault(pod_claim.resource_claim_name, []).extend(listed)
    return found


def ids_of(pod, container, answers):
    """Every order of CDI ids that kubelet may hand over. `answers`: claim name → devices with `requests` and `cdi_ids`."""
    asked = requests_of(pod, container)
    for order in permutations(asked):
        ids = []
        for name in order:
            for request in asked[name]:
                for device in answers.get(name, ()):
                    if not request or not device.requests or request in device.requests:
                        ids += device.cdi_ids
        yield list(dict.fromkeys(ids))


def environments(pod, container_name, answers, specs):
    """The environment of the container for every order."""
    everybody = (*pod.spec.init_containers, *pod.spec.containers)
    container = next(each for each in everybody if each.name == container_name)
    devices = {
        f"{document['kind']}={device['name']}": device for document in specs.values() for device in document["devices"]
    }
    found = []
    for ids in ids_of(pod, container, answers):
        env = {}
        for each in ids:
            env |= dict(entry.split("=", 1) for entry in devices[each]["containerEdits"].get("env", ()))
        found.append(env)
    return found
