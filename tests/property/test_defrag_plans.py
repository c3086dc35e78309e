"""Plans of moves on random small clusters, against all moves in all orders; and each step of them, carried out."""

from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.insight.defrag import Goal, plan_moves
from controller.insight.simulation import SimulationSettings
from controller.scoring.policies import DevicePolicy, Policies
from tests.support.scattered import Scattered, fewest_moves

FEWER = settings(max_examples=max(settings().max_examples // 3, 1), deadline=None)
POLICIES = st.sampled_from(
    [("binpack", "binpack"), ("binpack", "spread"), ("spread", "spread"), ("fair-share", "binpack")]
)


@st.composite
def clusters(draw):
    """Two to four nodes with one or two cards of 16 or 24 GiB, and up to five pods; none has more than there is."""
    names = [f"n{number}" for number in range(draw(st.integers(2, 4)))]
    found = Scattered(**{name: draw(st.lists(st.sampled_from([16, 24]), min_size=1, max_size=2)) for name in names})
    left = {(name, index): size for name, sizes in found.cards.items() for index, size in enumerate(sizes)}
    cpu = dict.fromkeys(names, 8)
    if draw(st.booleans()):
        found.protect(draw(st.integers(0, 1)), app="a")
    for number in range(draw(st.integers(2, 5))):
        node = draw(st.sampled_from(names))
        size, count, cores = (
            draw(st.sampled_from([4, 4, 8, 8, 10, 16])),
            draw(st.integers(1, 2)),
            draw(st.sampled_from([1, 1, 3])),
        )
        devices = [index for index in range(len(found.cards[node])) if left[node, index] >= size][:count]
        if len(devices) < count or cpu[node] < cores:
            continue
        cpu[node] -= cores
        for index in devices:
            left[node, index] -= size
        app = draw(st.sampled_from(["a", "b", "b"]))
        owners = [] if draw(st.integers(0, 7)) == 7 else None
        found.run(f"p{number}", node, devices, size, cpu=str(cores), owners=owners, labels={"app": app})
    return found


@st.composite
def chosen_settings(draw):
    node, device = draw(POLICIES)
    return SimulationSettings(policies=Policies(node_policy=node, device_policy=DevicePolicy((device,))))


GOALS = st.one_of(
    st.builds(Goal, nodes=st.integers(1, 2), least=st.integers(1, 2)), st.builds(Goal, devices=st.integers(1, 2))
)


def check(found, plan):
    """Whoever moves may move, once, and no card has more on it than it has memory, at any step."""
    sizes = {
        f"nvidia.hami.io/{node}/gpu-{index}": size << 30
        for node, own in found.cards.items()
        for index, size in enumerate(own)
    }
    held = {}
    for raw in found.raws:
        if raw["kind"] == "ResourceClaim" and "status" in raw:
            for each in raw["status"]["allocation"]["devices"]["results"]:
                amount = int(each["consumedCapacity"]["memory"].removesuffix("Gi")) << 30
                device = f"{each['driver']}/{each['pool']}/{each['device']}"
                held[f"default/{raw['metadata']['name'].removesuffix('-gpus')}", device] = amount
    protected = {
        raw["metadata"]["name"]
        for raw in found.raws
        if raw["kind"] == "Pod" and raw["metadata"]["labels"].get("app") == "a"
    }
    budgets = [raw for raw in found.raws if raw["kind"] == "PodDisruptionBudget"]
    orphans = {
        raw["metadata"]["name"]
        for raw in found.raws
        if raw["kind"] == "Pod" and not raw["metadata"].get("ownerReferences")
    }
    assert len({move.pod for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        name = move.pod.removeprefix("default/")
        assert name not in orphans
        assert name not in protected or not budgets or budgets[0]["status"]["disruptionsAllowed"]
        assert move.to_node not in plan.held_nodes
        assert not {*move.to_devices} & {*plan.held_devices}
        amounts = [held.pop((move.pod, device)) for device in move.from_devices]
        assert sum(amounts) == move.memory
        assert len(move.to_devices) == len(amounts)
        for device in move.to_devices:
            held[move.pod, device] = amounts[0]
        for device, size in sizes.items():
            assert sum(amount for (_, each), amount in held.items() if each == device) <= size
    in_use = {device for _, device in held}
    for name in plan.frees if not plan.goal.startswith("a place") else ():
        assert not any(device == name or device.split("/")[1] == name for device in in_use)


@FEWER
@given(clusters(), chosen_settings(), GOALS)
def test_no_fewer_moves_free_devices_or_nodes(found, chosen, goal):
    plan = plan_moves(found.documents(), chosen, goal)
    check(found, plan)
    least = fewest_moves(found, goal, chosen)
    event(f"{least} moves")
    if not plan.is_cut:
        assert plan.is_reached == (least is not None)
        assert not plan.is_reached or len(plan.moves) == least
    else:
        assert not plan.is_reached or (least is not None and len(plan.moves) >= least)


@FEWER
@given(clusters(), chosen_settings(), st.integers(1, 2), st.sampled_from([8, 12, 16, 24]))
def test_no_fewer_moves_make_room_for_a_pod(found, chosen, count, size):
    found.wait("late", count, size)
    goal = Goal(pod="default/late")
    plan = plan_moves(found.documents(), chosen, goal)
    check(found, plan)
    least = fewest_moves(found, goal, chosen)
    event(f"{least} moves")
    assert plan.is_reached == (least is not None)
    assert not plan.is_reached or len(plan.moves) == least


@FEWER
@given(clusters(), chosen_settings(), GOALS, st.integers(0, 3))
def test_no_more_moves_than_are_allowed_nor_than_the_steps_give(found, chosen, goal, most):
    plan = plan_moves(found.documents(), chosen, replace(goal, moves=most))
    check(found, plan)
    assert len(plan.moves) <= most
