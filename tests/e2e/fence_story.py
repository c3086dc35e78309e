"""What happens when somebody deletes the fence's rule; the same wherever the cluster serves DeviceTaintRules."""

from tests.e2e.lab import allocated_by
from tests.e2e.objects import claim, part, pod, request

FENCE_FINALIZER = "hami.io/fence"
DRIVER = "nvidia.hami.io"


def the_one_rule(lab):
    """Once nobody waits for another one to go."""

    def alone():
        rules = lab.hami.fence_rules(DRIVER)
        return rules if len(rules) == 1 and "deletionTimestamp" not in rules[0]["metadata"] else None

    (rule,) = lab.hami.wait_for("one fence rule", alone)
    assert rule["metadata"]["finalizers"] == [FENCE_FINALIZER]
    assert rule["spec"]["deviceSelector"] == {"driver": DRIVER}
    return rule


def a_rule_deleted_while_no_controller_runs_keeps_kube_scheduler_off(lab, controller):
    """`lab` has the machine t4."""
    rule = the_one_rule(lab)
    controller.process.stop()
    lab.api.remove(rule)
    lab.create(claim("whole", request()), claim("part", part("1Gi")))
    lab.create(pod("whole", claims=["whole"], gated=False), pod("part", claims=["part"], gated=False))
    for name in ("whole", "part"):
        lab.hami.api.wait_for("the refusal", lambda name=name: "cannot allocate all claims" in lab.refusal(name))
    assert not any(item.get("status") for item in lab.claims())
    (waiting,) = lab.hami.fence_rules(DRIVER)
    assert waiting["metadata"]["uid"] == rule["metadata"]["uid"]
    assert "deletionTimestamp" in waiting["metadata"]

    controller.process.start()
    lab.wait_running(names=["whole", "part"])
    assert the_one_rule(lab)["metadata"]["name"] != rule["metadata"]["name"]
    assert all(map(allocated_by, lab.claims()))
    assert lab.overcommitted() == []
