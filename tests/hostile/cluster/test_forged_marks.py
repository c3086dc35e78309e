"""M3: a tenant cannot forge our annotation any more, and a device that a crash left allocated is freed although hundreds of claims
carry a forged one: from before the policy was installed, or from an administrator's restore.
"""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor

from hack.installation import DRIVER
from tests.e2e.lab import T4
from tests.e2e.objects import claim, part
from tests.hostile.cluster.tenant import Tenant

MARKED = {"hami.io/allocated-by": "hami-dra"}
FORGED = 400


def test_an_orphaned_device_is_freed_before_forged_annotations(lab, control_plane):
    lab.machines(T4, "t4")
    tenant = Tenant(control_plane, lab.namespace)
    forged = claim("", part(), annotations=MARKED)
    forged["metadata"] |= {"generateName": "forged-", "finalizers": ["resource.kubernetes.io/delete-protection"]}
    assert tenant.send("POST", tenant.claims(), json.dumps(forged).encode()) == 403
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: lab.api.create(tenant.claims(), forged), range(FORGED)))
    lab.create(claim("orphan", part(), annotations=MARKED))
    allocate(lab, "orphan", "t4")
    lab.wait_event("orphan", "OrphanedAllocationFreed")
    assert "allocation" not in lab.claim("orphan").get("status", {})
    lab.hami.wait_for("forged annotations gone", lambda: not any(is_marked(each) for each in lab.claims()))
    tenant.close()


def allocate(lab, name, node):
    """As a controller that died right after would have left it."""
    [device] = [item["spec"]["devices"][0]["name"] for item in lab.slices() if item["spec"].get("nodeName") == node]
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": device, "shareID": str(uuid.uuid4())}
    result["consumedCapacity"] = {"memory": "4Gi", "cores": "0", "shares": "1"}
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [pinned]}}
    lab.api.patch(f"{lab.claims_path}/{name}/status", {"status": {"allocation": allocation}})


def is_marked(claim):
    return bool(MARKED.keys() & claim["metadata"].get("annotations", {}).keys())
