"""What containers of a pod see of its claims, and which of them kubelet cannot tell apart."""

import random

import pytest

from hami_dra.driver.prepare.container_views import arrange
from hami_dra.driver.prepare.errors import Refused
from hami_dra.driver.prepare.pods import common_env, containers, most_at_once, read_pod, references
from hami_dra.vendors.nvidia.options import LIBRARY_FOLDER, Keeping
from tests.support.preparing import DRIVER, PreparedNode, claim, env_of, only, pod, pod_json, share, unprepared


@pytest.fixture
def node(tmp_path):
    return PreparedNode(tmp_path, installed=False)


def limits(env):
    kept = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1")
    return [env.get(name, "") for name in kept]


def seen(node, claims, of_pod, container):
    """The same for every order of the claims."""
    environments = node.seen(claims, of_pod, container)
    assert all(env == environments[0] for env in environments)
    return limits(environments[0])


def test_two_containers_with_different_requests_of_one_claim_get_different_limits(node):
    c = claim("c", share("gpu-0", "small", memory="2Gi"), share("gpu-1", "large", memory="8Gi"))
    of_pod = pod(containers={"one": ["c/small"], "two": ["c/large"]})
    assert not isinstance(node.prepare(c, pods=[of_pod])["uid-c"], str)
    assert seen(node, [c], of_pod, "one") == ["GPU-0", "2048m", ""]
    assert seen(node, [c], of_pod, "two") == ["GPU-1", "8192m", ""]


def test_a_container_with_all_requests_sees_all_cards_in_order(node):
    c = claim("c", share("gpu-1", "b", memory="8Gi"), share("gpu-0", "a", memory="2Gi"))
    node.prepare(c, pods=[pod()])
    assert seen(node, [c], pod(), "main") == ["GPU-0,GPU-1", "2048m", "8192m"]


def test_claims_of_one_container_are_one_view(node):
    a, b = claim("a", share("gpu-0", memory="2Gi")), claim("b", share("gpu-1", memory="8Gi"))
    of_pod = pod(claims=("a", "b"))
    node.prepare(a, b, pods=[of_pod])
    assert seen(node, [a, b], of_pod, "main") == ["GPU-0,GPU-1", "2048m", "8192m"]
    assert node.unprepare(a, b) == {"uid-a": "", "uid-b": ""}
    assert node.traces() == []


def test_an_init_container_with_less_of_the_same_claim(node):
    c = claim("c", share("gpu-0", "a", memory="2Gi"), share("gpu-1", "b", memory="8Gi"))
    of_pod = pod(containers={"main": ["c"]}, init={"setup": ["c/a"]})
    node.prepare(c, pods=[of_pod])
    assert seen(node, [c], of_pod, "setup") == ["GPU-0", "2048m", ""]
    assert seen(node, [c], of_pod, "main") == ["GPU-0,GPU-1", "2048m", "8192m"]


def test_containers_that_share_one_request_and_have_one_of_their_own(node):
    c = claim(
        "c", share("gpu-0", "both", memory="2Gi"), share("gpu-1", "b", memory="1Gi"), share("gpu-1", "c", memory="3Gi")
    )
    of_pod = pod(containers={"one": ["c/both", "c/b"], "two": ["c/c", "c/both"]})
    node.prepare(c, pods=[of_pod])
    assert seen(node, [c], of_pod, "one") == ["GPU-0,GPU-1", "2048m", "1024m"]
    assert seen(node, [c], of_pod, "two") == ["GPU-0,GPU-1", "2048m", "3072m"]


def test_a_larger_view_whose_own_request_is_listed_first_is_refused_with_the_order(node):
    c = claim("c", share("gpu-0", "a"), share("gpu-1", "b"))
    of_pod = pod(containers={"one": ["c/a"], "two": ["c/b", "c/a"]})
    why = node.prepare(c, pods=[of_pod])["uid-c"]
    assert "spec.containers[two].resources.claims" in why
    assert "list in resources.claims first the requests that other containers use too" in why
    right = pod(containers={"one": ["c/a"], "two": ["c/a", "c/b"]})
    assert not isinstance(node.prepare(c, pods=[right])["uid-c"], str)


def test_a_larger_view_over_two_claims_is_refused(node):
    a, b = claim("a", share("gpu-0")), claim("b", share("gpu-1"))
    of_pod = pod(containers={"one": ["a"], "two": ["a", "b"]}, claims=("a", "b"))
    outcomes = node.prepare(a, b, pods=[of_pod])
    assert "put the requests of these containers into one claim" in outcomes["uid-a"]
    assert outcomes["uid-a"] == outcomes["uid-b"]
    assert node.specs() == {}


def test_a_claim_that_is_prepared_for_a_pod_is_not_widened_for_the_next(node):
    shared, own = claim("shared", share("gpu-0")), claim("own", share("gpu-1"))
    node.prepare(shared, pods=[pod("first", claims=("shared",))])
    why = node.prepare(own, pods=[pod("second", claims=("shared", "own"))])["uid-own"]
    assert "default/shared" in why
    assert "into one claim" in why
    # containers of the second pod that use one claim each are fine
    apart = pod("third", {"one": ["shared"], "two": ["own"]}, claims=("shared", "own"))
    assert not isinstance(node.prepare(own, pods=[apart])["uid-own"], str)


@pytest.mark.parametrize("owners", [("", "pod"), ("pod", ""), ("", "")])
def test_a_claim_that_others_may_join_is_not_used_together_with_another(node, owners):
    """kubelet hands a pod that joins it later what the first one got: the devices of both claims."""
    a, b = (
        claim(name, share(f"gpu-{index}"), owner=owner)
        for index, (name, owner) in enumerate(zip("ab", owners, strict=True))
    )
    outcomes = node.prepare(a, b, pods=[pod(claims=("a", "b"))])
    joinable = "a" if not owners[0] else "b"
    assert f"Pod default/pod: container main uses ResourceClaim default/{joinable} together with" in outcomes["uid-a"]
    assert "into one claim, or use ResourceClaimTemplates" in outcomes["uid-a"]
    assert outcomes["uid-a"] == outcomes["uid-b"]
    assert node.specs() == {}
    apart = pod(containers={"one": ["a"], "two": ["b"]}, claims=("a", "b"))
    assert not any(isinstance(each, str) for each in node.prepare(a, b, pods=[apart]).values())


def test_a_container_that_starts_again_is_not_given_devices_of_a_claim_that_is_gone(node):
    """A pod can name a claim that was generated for another one, and outlive that pod and its other claims."""
    a, b = claim("a", share("gpu-0", memory="2Gi")), claim("b", share("gpu-1", memory="8Gi"))
    node.prepare(a, b, pods=[pod(claims=("a", "b"))])
    guest = pod("guest", claims=("a",))
    assert node.unprepare(b) == {"uid-b": ""}
    assert seen(node, [a], guest, "main") == ["GPU-0", "2048m", ""]
    node.restart()
    other = claim("other", share("gpu-1"))
    node.prepare(other, pods=[pod("other", claims=("other",))])
    assert seen(node, [a], guest, "main") == ["GPU-0", "2048m", ""]
    node.unprepare(a, other)
    assert node.traces() == []


@pytest.mark.parametrize("usage_cache", list(Keeping))
def test_a_pod_that_joins_a_named_claim_later_shares_no_file_of_usage(tmp_path, usage_cache):
    """B5: it is given the CDI device that was made for the first pod, whose folder HAMi's monitor removes in time."""
    node = PreparedNode(tmp_path, usage_cache=usage_cache)
    c = claim("c", share("gpu-0", memory="2Gi"), owner="")
    first = node.prepare(c, pods=[pod("first")])["uid-c"]
    assert node.prepare(c, pods=[pod("first"), pod("later")])["uid-c"].answers == first.answers
    assert seen(node, [c], pod("later"), "main") == ["GPU-0", "2048m", ""]
    assert_private(only(node.specs())["containerEdits"], node.host.settings.options[LIBRARY_FOLDER])
    assert node.work.written["uid-c"].folders == ()


@pytest.mark.parametrize("usage_cache", list(Keeping))
@pytest.mark.parametrize("also", [{"init": {"setup": ["c"]}}, {"containers": {"main": ["c"], "sidecar": ["c"]}}])
def test_containers_that_share_a_request_write_each_to_memory_of_its_own(tmp_path, usage_cache, also):
    """B8: nothing of HAMi-core's is written to the root file system, which may be read-only."""
    node = PreparedNode(tmp_path, usage_cache=usage_cache)
    node.prepare(claim("c", share("gpu-0")), pods=[pod(**also)])
    assert_private(only(node.specs())["containerEdits"], node.host.settings.options[LIBRARY_FOLDER])


def test_a_claim_of_one_pod_may_keep_its_usage_where_hamis_monitor_reads_it(tmp_path):
    node = PreparedNode(tmp_path, usage_cache=Keeping.HOST)
    folder = f"{node.host.settings.options[LIBRARY_FOLDER]}/vgpu"
    for owner, kept in (("pod", [f"{folder}/containers/uid-pod_main"]), ("another", []), ("", [])):
        c = claim("c", share("gpu-0"), owner=owner)
        node.prepare(c, pods=[pod()])
        assert [each.path for each in node.work.written["uid-c"].folders] == kept
        node.unprepare(c)


def assert_private(edits, library_folder):
    """What HAMi-core writes, its usage and its locks, is in file systems in memory that any user may write to."""
    memory = {mount["containerPath"]: mount["options"] for mount in edits["mounts"] if mount.get("type") == "tmpfs"}
    cache = env_of({"containerEdits": edits})["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    assert memory.keys() == {cache.rpartition("/")[0], "/tmp/vgpulock"}
    assert cache.startswith(f"{library_folder}/vgpu/")
    assert all({"rw", "mode=1777"} <= set(options) for options in memory.values())
    bound = [mount for mount in edits["mounts"] if mount.get("type") != "tmpfs"]
    assert all("ro" in mount["options"] for mount in bound)


def test_what_no_container_uses_now_may_be_used_by_a_later_pod(node):
    c = claim("c", share("gpu-0", "a", memory="2Gi"), share("gpu-1", "b", memory="8Gi"))
    node.prepare(c, pods=[pod("first", {"one": ["c/a"]})])
    later = pod("later", {"two": ["c/b"]})
    assert seen(node, [c], later, "two") == ["GPU-1", "8192m", ""]


def test_a_claim_whose_users_are_not_known_is_one_view(node):
    c = claim("c", share("gpu-0", "a", memory="2Gi"), share("gpu-1", "b", memory="8Gi"))
    node.prepare(c)
    assert seen(node, [c], pod(), "main") == ["GPU-0,GPU-1", "2048m", "8192m"]


def test_subrequests_go_by_their_parent(node):
    c = claim("c", share("gpu-0", "want/small", memory="2Gi"))
    of_pod = pod(containers={"main": ["c/want"]})
    outcome = node.prepare(c, pods=[of_pod])["uid-c"]
    assert outcome.answers[0].requests == ("want",)
    assert seen(node, [c], of_pod, "main")[0] == "GPU-0"


def test_what_would_stay_of_a_smaller_view_is_refused(tmp_path):
    """The smaller one's preload file would stay in a container that says it wants none."""
    node = PreparedNode(tmp_path, installed=True)
    c = claim("c", share("gpu-0", "a", cores="20"), share("gpu-1", "b", cores="40"))
    raw = pod_json(containers={"main": ["c"]}, init={"setup": ["c/a"]})
    assert not isinstance(node.prepare(c, pods=[read_pod(raw)])["uid-c"], str)
    node.unprepare(c)
    raw["spec"]["containers"][0]["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "true"}]
    why = node.prepare(c, pods=[read_pod(raw)])["uid-c"]
    assert "/etc/ld.so.preload" in why
    assert "its own requests" in why
    assert node.traces() == []


def test_containers_with_a_generated_claim_and_with_extended_resources():
    raw = pod_json(claims=())
    raw["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "t"}, {"name": "none"}]
    raw["spec"]["containers"] = [
        {"name": "main", "resources": {"claims": [{"name": "mine", "request": "r"}, {"name": "none"}]}},
        {"name": "plain", "resources": {"requests": {"nvidia.com/gpu": "1"}}},
    ]
    raw["status"] = {
        "resourceClaimStatuses": [{"name": "mine", "resourceClaimName": "pod-mine-x"}, {"name": "none"}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "pod-extended",
            "requestMappings": [
                {"containerName": "plain", "resourceName": "nvidia.com/gpu", "requestName": "container-1-request-0"}
            ],
        },
    }
    of_pod = read_pod(raw)
    assert [references(of_pod, each) for each in containers(of_pod)] == [
        [("pod-mine-x", "r")],
        [("pod-extended", "container-1-request-0")],
    ]


def test_the_environment_that_containers_have_in_common():
    raw = pod_json()
    env = [
        [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C"}],
        [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C"}, {"name": "D", "valueFrom": {"x": 1}}],
    ]
    raw["spec"]["containers"] = [{"name": str(index), "env": own} for index, own in enumerate(env)]
    assert common_env(containers(read_pod(raw))) == {"A": "1", "C": ""}


def test_what_users_set_is_written_nowhere(node):
    raw = pod_json()
    raw["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": "hunter2"}]
    node.prepare(claim("c", share("gpu-0")), pods=[read_pod(raw)])
    written = [path.read_text() for path in (*node.cdi.iterdir(), node.checkpoint)]
    assert not any("hunter2" in text for text in written)


def test_a_pod_that_cannot_be_understood_is_refused_by_name():
    with pytest.raises(Refused, match="Pod p: "):
        read_pod({"metadata": {"name": "p"}, "spec": {"containers": 3}})


def test_views_have_names_of_their_own_per_driver():
    claimed = [unprepared("c", "r")]
    names = {arrange(driver, claimed, [pod()], {}).view_of["uid-c", "r"].name for driver in (DRIVER, "other.hami.io")}
    assert len(names) == 2


def running(inits, mains):
    """The sets of containers that run at the same time in the life of a pod: (name, whether it is a sidecar) in order."""
    sidecars = set()
    for name, is_sidecar in inits:
        yield {*sidecars, name}
        if is_sidecar:
            sidecars.add(name)
    yield {*sidecars, *mains}


def test_the_most_containers_that_run_at_the_same_time():
    dice = random.Random(7)
    for _ in range(2_000):
        inits = [(f"i{number}", dice.random() < 0.4) for number in range(dice.randrange(4))]
        mains = [f"m{number}" for number in range(dice.randint(1, 3))]
        names = {name for name in [*mains, *dict(inits)] if dice.random() < 0.6}
        found = read_pod(
            {
                "spec": {
                    "initContainers": [
                        {"name": name} | ({"restartPolicy": "Always"} if is_sidecar else {})
                        for name, is_sidecar in inits
                    ],
                    "containers": [{"name": name} for name in mains],
                }
            }
        )
        assert most_at_once(found, names) == max(len(names & together) for together in running(inits, mains))


@pytest.mark.parametrize(
    ("init", "sidecar", "expected"), [({}, False, 1), ({"setup": ["c"]}, False, 1), ({"setup": ["c"]}, True, 2)]
)
def test_a_view_knows_how_many_of_its_containers_run_at_the_same_time(init, sidecar, expected):
    raw = pod_json(containers={"main": ["c"]}, init=init)
    for each in raw["spec"].get("initContainers", ()):
        each.update({"restartPolicy": "Always"} if sidecar else {})
    found = read_pod(raw)
    claimed = unprepared("c", "r")
    (view,) = {view.name: view for view in arrange(DRIVER, [claimed], [found], {}).view_of.values()}.values()
    assert view.at_once == expected
