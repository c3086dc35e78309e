"""Views against kubelet: whatever containers refer to, in whatever order, each gets exactly its own view last, or the pod is refused."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hami_dra.driver.kubelet.protocol import PreparedDevice
from hami_dra.driver.prepare.container_views import answer_order, arrange
from hami_dra.driver.prepare.errors import Refused
from tests.support.kubelet_order import ids_of, requests_of
from tests.support.preparing import DRIVER, pod, unprepared

CLAIMS = {"a": ("r", "s", "t"), "b": ("x", "y")}


def claimed(*joinable):
    """`joinable`: names of claims that users made, which any pod may join."""
    return [unprepared(name, *requests, joinable=name in joinable) for name, requests in CLAIMS.items()]


CLAIMED = claimed()


@st.composite
def containers(draw):
    references = st.sampled_from(["a", "b", *(f"{name}/{request}" for name in CLAIMS for request in CLAIMS[name])])
    found = {}
    for number in range(draw(st.integers(1, 4))):
        found[f"c{number}"] = draw(st.lists(references, min_size=0, max_size=4, unique=True))
    return found


def answers_of(arrangement):
    """Claim name → what kubelet is told, each view one CDI device."""
    answers = {}
    for claimed in CLAIMED:
        order = answer_order(claimed.requests, claimed.uid, arrangement.view_of)
        answers[claimed.name] = [
            PreparedDevice(
                requests=(request,),
                pool="n1",
                device=request,
                cdi_ids=(f"{claimed.name}/{view.name}",) if (view := arrangement.view_of[claimed.uid, request]) else (),
            )
            for request in order
        ]
    return answers


def wanted(of_pod, container):
    return {
        (f"uid-{name}", request)
        for name, listed in requests_of(of_pod, container).items()
        for each in listed
        for request in ([each] if each else CLAIMS[name])
    }


@settings(max_examples=500, deadline=None)
@given(containers())
def test_every_container_ends_with_its_own_view(described):
    of_pod = pod(containers=described, claims=tuple(CLAIMS))
    try:
        arrangement = arrange(DRIVER, CLAIMED, [of_pod], {})
    except Refused as error:
        assert "resources.claims" in str(error)  # noqa: PT017 (what is said is the point)
        views = {frozenset(wanted(of_pod, each)) for each in of_pod.spec.containers} - {frozenset()}
        overlapping = [(one, other) for one in views for other in views if one != other and one & other]
        assert overlapping, "containers that share nothing can always be told apart"
        return
    answers = answers_of(arrangement)
    views = {view.name: frozenset(view.asked) for view in arrangement.view_of.values() if view is not None}
    for container in of_pod.spec.containers:
        mine = frozenset(wanted(of_pod, container))
        for ids in ids_of(of_pod, container, answers):
            seen = [views[each.partition("/")[2]] for each in ids]
            if not mine:
                assert seen == []
                continue
            assert seen[-1] == mine
            assert all(view <= mine for view in seen), "nothing of other containers"
            for each in ids[:-1]:
                small, large = each.partition("/")[2], ids[-1].partition("/")[2]
                assert small == large or (small, large) in arrangement.nested


@settings(max_examples=200, deadline=None)
@given(containers())
def test_containers_with_requests_of_their_own_are_never_refused(described):
    of_pod = pod(containers=described, claims=tuple(CLAIMS))
    views = [frozenset(wanted(of_pod, each)) for each in of_pod.spec.containers]
    assume(all(one == other or not one & other for one in views for other in views))
    arrange(DRIVER, CLAIMED, [of_pod], {})


@settings(max_examples=300, deadline=None)
@given(containers(), containers())
def test_a_pod_that_joins_a_claim_later_is_given_nothing_of_other_claims(described, later):
    first, joining = pod("first", described, claims=tuple(CLAIMS)), pod("later", later, claims=("a",))
    try:
        arrangement = arrange(DRIVER, claimed("a"), [first], {})
    except Refused:
        return
    answers = answers_of(arrangement)
    views = {view.name: view.asked for view in arrangement.view_of.values() if view is not None}
    for container in joining.spec.containers:
        for ids in ids_of(joining, container, answers):
            assert {uid for each in ids for uid, _ in views[each.partition("/")[2]]} <= {"uid-a"}
