"""A profile of kube-scheduler with a rule that hami-dra cannot know: it is learnt by zone and shape, and told.

The rule is an addedAffinity of the profile: only nodes with a label that no pod mentions.
"""

import pytest

from hack.installation import QUICK, Installation
from tests.e2e.allocation_count import AllocationCount
from tests.e2e.lab import T4, Lab
from tests.e2e.objects import part, pod, template

PROFILE = "pinned"
ZONE = "topology.kubernetes.io/zone"
RULE = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "approved", "operator": "Exists"}]}]
    }
}
PROFILES = [
    {"schedulerName": "default-scheduler"},
    {
        "schedulerName": PROFILE,
        "pluginConfig": [
            {
                "name": "NodeAffinity",
                "args": {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "NodeAffinityArgs",
                    "addedAffinity": RULE,
                },
            }
        ],
    },
]


@pytest.mark.timeout(240)
def test_the_second_refusal_leads_to_another_zone_and_is_told(make_control_plane):
    plane = make_control_plane(scheduler_config={"profiles": PROFILES})
    installation = Installation(plane)
    installation.install()
    installation.start_controller(*QUICK, "--scheduler-name=default-scheduler", f"--scheduler-name={PROFILE}")
    installation.wait_ready()
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": "team"}})
    lab = Lab(plane, installation, "team")
    try:
        lab.machines(T4, *(f"a-{number}" for number in range(8)), labels={ZONE: "a"})
        lab.machines(T4, *(f"b-{number}" for number in range(8)), labels={ZONE: "b", "approved": "yes"})
        lab.create(template("part", part("1Gi")))
        with AllocationCount(plane.api) as count:
            gate = [{"name": "hami.io/allocation"}]
            lab.create(pod("p", templates=["part"], schedulerName=PROFILE, schedulingGates=gate))
            (found,) = lab.wait_running(names=["p"], seconds=120)
            assert found.node.startswith("b-")
            assert count.of("p")["p"] == 3, "two nodes of zone a, then zone b"
        note = lab.wait_event("p", "RepeatedlyRefused")
        assert "scheduler-enforced node affinity" in note
        assert installation.programs["controller"].metric("hami_dra_repeated_undos_total") == 1
    finally:
        lab.close()
        installation.remove()
