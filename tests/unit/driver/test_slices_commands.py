"""hami-dra slices and hami-dra topology, as a user types them."""

import asyncio
import json
from pathlib import Path

import pytest
import typer
import yaml
from msgspec.structs import replace
from typer.testing import CliRunner

from controller.cli.main import register
from hami_dra.api.errors import InputError
from hami_dra.api.hardware import Fault
from hami_dra.api.kinds import NODE, RESOURCE_CLAIM, RESOURCE_SLICE
from hami_dra.driver.fleet import fleet_file
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.kube import http
from hami_dra.kube.protocol import AlreadyExists, Invalid, ServerVersion, Unavailable
from tests.support.steered_cluster import SteeredCluster

ROOT = Path(__file__).resolve().parents[3]

app = typer.Typer(pretty_exceptions_enable=False)
register(app, "slices")
register(app, "topology")


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


def refused(*arguments):
    with pytest.raises(InputError) as caught:
        run(*arguments)
    return str(caught.value)


@pytest.fixture
def fleet_path(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "apiVersion: hami.io/v1alpha1\nkind: Fleet\nzones: [a, b]\n"
        'nodes:\n- {machine: g4dn.12xlarge, count: 2, name: "t4-{index}"}\n- {machine: g5.12xlarge, name: a10g}\n'
    )
    return path


class StaysOpen(SteeredCluster):
    """Commands close their connection; the tests look at the cluster afterwards."""

    async def close(self):
        pass


@pytest.fixture
def cluster(monkeypatch):
    memory = StaysOpen()
    monkeypatch.setattr(http, "connect", lambda kubeconfig=None, context=None: memory)
    return memory


# --- slices ----------------------------------------------------------------------------------------------------------


def test_what_is_printed_is_what_is_checked_in():
    golden = (ROOT / "resourceslices/dgx-h100.yaml").read_text()
    printed = run("slices", "--machine", "dgx-h100", "-o", "yaml")
    assert printed == "".join(line for line in golden.splitlines(keepends=True) if not line.startswith("#"))


def test_json_is_a_list():
    document = json.loads(run("slices", "--machine", "g5.12xlarge", "--node", "n1", "-o", "json"))
    (item,) = document["items"]
    assert (document["kind"], item["spec"]["nodeName"]) == ("List", "n1")


def test_the_table_has_one_line_per_card_and_never_cuts():
    lines = run("slices", "--machine", "g4dn.12xlarge", "--node", "n1", "-o", "wide").splitlines()
    assert lines[0].split() == [
        "NODE",
        "DRIVER",
        "DEVICE",
        "PRODUCT",
        "MEMORY",
        "CORES",
        "SHARES",
        "ISLAND",
        "NUMA",
        "UUID",
    ]
    uuid = machine("g4dn.12xlarge", "n1").cards[3].uuid
    assert lines[4].split() == ["n1", "nvidia.hami.io", "gpu-3", "Tesla", "T4", "15Gi", "100", "10", "0", uuid]


def test_the_machines_are_listed():
    listed = run("slices", "--list")
    assert "dgx-h100" in listed
    assert "8 x NVIDIA H100 80GB HBM3, NVSwitch all to all (18 lanes), two NUMA nodes" in listed


def test_sharing_and_fence_options():
    text = run(
        "slices", "--machine", "g5.12xlarge", "--slots", 4, "--memory-scaling", "1.5", "--fence", "on", "-o", "yaml"
    )
    device = yaml.safe_load(text)["spec"]["devices"][0]
    assert device["capacity"]["shares"]["value"] == "4"
    assert device["capacity"]["memory"]["value"] == "34542Mi"
    assert device["taints"] == [{"key": "hami.io/controller-allocates", "effect": "NoSchedule"}]


def test_nodes_can_be_printed_too_and_one_machine_is_no_fleet():
    node, item = yaml.safe_load_all(
        run("slices", "--machine", "dgx-h100", "--node", "n1", "--with-nodes", "-o", "yaml")
    )
    assert (node["kind"], node["metadata"]["name"], node["status"]["allocatable"]["cpu"]) == ("Node", "n1", "224")
    assert "hami.io/fleet" not in node["metadata"]["labels"]
    assert "labels" not in item["metadata"]


def test_slices_of_a_card_and_mig_mode_are_options():
    device = yaml.safe_load(run("slices", "--machine", "s60-8", "--card-slices", 6, "-o", "yaml"))["spec"]["devices"][0]
    assert device["capacity"]["cores"]["requestPolicy"]["validValues"] == ["16", "33", "50", "66", "83", "100"]
    assert run("slices", "--machine", "dgx-a100", "--mig").count("-mig-1g-10gb-") == 8 * 7


def test_another_driver_can_be_imitated():
    (item,) = yaml.safe_load_all(
        run("slices", "--machine", "trn1.32xlarge", "--publish-as", "neuron.aws.com", "-o", "yaml")
    )
    assert item["spec"]["driver"] == "neuron.aws.com"
    assert len(item["spec"]["devices"]) == 16


def test_a_fleet_is_printed_with_its_nodes(fleet_path):
    documents = list(yaml.safe_load_all(run("slices", "--fleet", fleet_path, "--with-nodes", "-o", "yaml")))
    assert [(item["kind"], item["metadata"]["labels"]["hami.io/fleet"]) for item in documents] == [
        ("Node", "fleet"), ("ResourceSlice", "fleet"),
    ] * 3  # fmt: skip
    zones = [item["metadata"]["labels"]["topology.kubernetes.io/zone"] for item in documents if item["kind"] == "Node"]
    assert zones == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "none of them was given"),
        (("--list", "--machine", "dgx-h100"), "--list and --machine was given"),
        (("--machine", "dgx"), "there is no machine 'dgx'; choose one of: a2-ultragpu-2g-mig, atlas-300i-pro-6"),
        (
            ("--machine", "dgx-h100", "--node", "N 1"),
            "--machine: nodes.0: name 'N 1' makes 'N 1', which cannot be the name",
        ),
        (("--machine", "dgx-h100", "--memory-scaling", "x"), "nodes.0.sharing.memoryScaling: 'x' is not a number"),
        (("--machine", "trn1.32xlarge", "--mig"), "mig: trn1.32xlarge has no GPU that supports MIG"),
        (("--machine", "dgx-h100", "--publish"), "--publish and --remove need --fleet"),
        (("--fleet", "/nonexistent/fleet.yaml"), "/nonexistent/fleet.yaml"),
    ],
)
def test_bad_options_say_what_to_do(arguments, said):
    assert said in refused("slices", *arguments)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "nodes: [{machine: dgx-h100, count: 2, name: x}]",
            "nodes.0: name 'x' is the same for 2 nodes: put {index} into it",
        ),
        ("kind: Fleet\nnodes: 3\n", "nodes: Input should be a valid tuple"),
        ("kind: Pod\n", "kind: Input should be 'Fleet'"),
        ("kind: Fleet\n---\nkind: Fleet\n", "holds 2 objects"),
        ("", "holds 0 objects"),
        ("nodes: [", "not YAML"),
        ("nodes: [{machine: nonsense}]", "nodes[0]: there is no machine 'nonsense'"),
    ],
)
def test_a_bad_fleet_file_names_file_and_field(tmp_path, text, said):
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    message = refused("slices", "--fleet", path)
    assert said in message
    assert "nonsense" in message or str(path) in message


# --- check -----------------------------------------------------------------------------------------------------------


def test_good_slices_pass(monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert run("slices", "--check", ROOT / "resourceslices") == (
        "33 ResourceSlices, no problems in their pools; with --kubeconfig an API server checks each slice too\n"
    )


def slices_file(folder, number=1):
    bodies = slice_bodies(machine_pools(machine("g4dn.12xlarge", f"n{n}"))[0] for n in range(number))
    path = folder / "slices.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))
    return path


def test_each_slice_is_checked_by_an_api_server_that_stores_nothing(cluster, tmp_path):
    path = slices_file(tmp_path, 2)
    assert run("slices", "--check", path, "--kubeconfig", "k") == "2 ResourceSlices, no problems\n"
    assert cluster.requests["create resourceslices"] == 2
    assert not ask(names(cluster, RESOURCE_SLICE))
    cluster.fail_next(Invalid("create ResourceSlice: spec.devices[1].name: Invalid value"), verb="create")
    assert run("slices", "--check", path, "--context", "c", code=1).splitlines() == [
        f"{path}, document 1: create ResourceSlice: spec.devices[1].name: Invalid value"
    ]
    cluster.fail_next(AlreadyExists("there"), verb="create", times=2)
    assert run("slices", "--check", path, "--kubeconfig", "k") == "2 ResourceSlices, no problems\n"
    cluster.fail_next(Unavailable("away"), verb="create")
    assert "away" in refused("slices", "--check", path, "--kubeconfig", "k")


def test_what_is_no_slice_is_one_line_with_file_object_field_and_problem(tmp_path):
    (body,) = slice_bodies(machine_pools(machine("g4dn.12xlarge", "n1")))
    body["spec"]["devices"][1]["name"] = 5
    path = tmp_path / "slices.json"
    path.write_text(json.dumps(body))
    assert run("slices", "--check", path, code=1) == (
        f"{path}, document 1: {body['metadata']['name']}: spec.devices[1].name: Expected `str`, got `int`\n"
    )


def test_pools_are_checked_as_a_whole(tmp_path):
    (body,) = slice_bodies(machine_pools(machine("g4dn.12xlarge", "n1")))
    body["spec"]["pool"]["resourceSliceCount"] = 2
    path = tmp_path / "slices.yaml"
    path.write_text(yaml.safe_dump(body))
    assert "pool nvidia.hami.io/n1: spec.pool.resourceSliceCount: is 2, but the pool has 1 slices" in run(
        "slices", "--check", path, code=1
    )


def test_nothing_to_check_is_an_error(tmp_path):
    path = tmp_path / "pod.yaml"
    path.write_text("kind: Pod\n")
    assert "contains no ResourceSlice" in refused("slices", "--check", path)


# --- publish ---------------------------------------------------------------------------------------------------------


async def names(cluster, kind):
    return [item.metadata.name for item in (await cluster.list(kind)).items]


def ask(coroutine):
    return asyncio.run(coroutine)


def test_publish_once_and_remove(cluster, fleet_path):
    run("slices", "--fleet", fleet_path, "--publish", "--once")
    assert ask(names(cluster, NODE)) == ["a10g", "t4-0", "t4-1"]
    assert len(ask(names(cluster, RESOURCE_SLICE))) == 3
    run("slices", "--fleet", fleet_path, "--remove")
    assert not ask(names(cluster, NODE))
    assert not ask(names(cluster, RESOURCE_SLICE))


def test_publish_refuses_an_old_kubernetes(monkeypatch, fleet_path):
    old = SteeredCluster(ServerVersion(1, 35, "v1.35.2"))
    monkeypatch.setattr(http, "connect", lambda kubeconfig=None, context=None: old)
    assert "needs Kubernetes 1.36 or newer" in refused("slices", "--fleet", fleet_path, "--publish", "--once")


def test_what_could_not_be_published_is_named(cluster, fleet_path):
    ask(cluster.create(NODE, {"metadata": {"name": "a10g"}}))
    assert "node a10g: it exists and does not belong to this fleet" in refused(
        "slices", "--fleet", fleet_path, "--publish", "--once"
    )


async def test_a_fleet_follows_its_file_and_survives_a_bad_edit(tmp_path, caplog):
    path = tmp_path / "fleet.yaml"
    path.write_text("nodes: [{machine: dgx-h100}]")
    edits = iter(["nodes: []", "nodes: [{machine: nonsense}]", None, "nodes: [{machine: dgx-h100, count: 2}]"])
    seen = []

    class Fleet:
        def update(self, file):
            if any(group.machine == "nonsense" for group in file.nodes):
                raise fleet_file.ConfigError("no machine nonsense")
            seen.append(sum(group.count for group in file.nodes))

    class Done(Exception):
        pass

    async def edit(_seconds):
        try:
            text = next(edits)
        except StopIteration:
            raise Done from None
        path.unlink() if text is None else path.write_text(text)

    with pytest.raises(Done):
        await fleet_file.follow(Fleet(), path, sleep=edit)
    assert seen == [0, 2]
    assert sum("the fleet stays as it is" in record.message for record in caplog.records) == 2


async def test_an_edit_before_the_fleet_was_published_is_not_missed(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text("nodes: [{machine: dgx-h100}]")
    version = fleet_file.version_of(path)
    path.write_text("nodes: [{machine: dgx-h100, count: 2}]")
    seen = []

    class Fleet:
        def update(self, file):
            seen.append(file.nodes[0].count)

    class Done(Exception):
        pass

    async def twice(_seconds):
        if seen:
            raise Done

    with pytest.raises(Done):
        await fleet_file.follow(Fleet(), path, version, sleep=twice)
    assert seen == [2]


# --- topology --------------------------------------------------------------------------------------------------------


def matrix(text):
    return [line.split() for line in text.splitlines()]


def test_the_matrix_of_an_nvswitch_machine():
    text = run("topology", "n1", "--machine", "dgx-h100")
    lines = matrix(text)
    assert lines[0] == ["n1", "(nvidia.hami.io)"]
    assert lines[3][:9] == ["gpu-1", "L18", "X", "L18", "L18", "L18", "L18", "L18", "L18"]
    assert "island 1: 8 cards (gpu-0 to gpu-7)" in text
    assert "in no island" not in text
    assert "PIX" not in text


def test_the_matrix_of_a_pcie_machine_and_its_legend():
    text = run("topology", "-f", ROOT / "resourceslices/l40s-pcie-8.yaml")
    assert matrix(text)[2][:11] == ["gpu-0", "X", "PIX", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS", "0", "pci0000:16"]
    assert text.splitlines()[-3:] == [
        "PIX   below one PCIe switch",
        "NODE  through several host bridges of one NUMA node",
        "SYS   through the interconnect between NUMA nodes",
    ]


def test_a_driver_without_links_gets_no_matrix_but_its_groups():
    text = run("topology", "--machine", "trn1.32xlarge", "--publish-as", "neuron.aws.com")
    assert "publishes neither links nor distances" in text
    assert text.count(": 4 cards (") == 4
    assert [row[0] for row in matrix(text)[2:5]] == ["neuron-device-0", "neuron-device-1", "neuron-device-2"]
    assert "?" not in text


def test_columns_of_long_names_are_the_indices_of_the_cards():
    lines = matrix(run("topology", "--machine", "trn1.32xlarge"))
    assert lines[1][:17] == [*map(str, range(16)), "NUMA"]
    assert lines[2][:6] == ["neuron-0", "X", "L1", "SYS", "L1", "L1"]
    assert " ".join(lines[18]) == "island 1: 16 cards (neuron-0 to neuron-15)"


def test_the_wings_of_kunlunxin_are_islands_although_cards_are_linked_across():
    text = run("topology", "--machine", "p800-oam-8")
    assert "island 1: 4 cards (xpu-0 to xpu-3)\nisland 2: 4 cards (xpu-4 to xpu-7)\n" in text
    assert matrix(text)[2][:9] == ["xpu-0", "X", "L1", "L1", "L1", "L1", "SYS", "SYS", "SYS"]


def test_parts_of_cards_are_no_cards_and_cards_say_what_they_can_be_cut_into():
    text = run("topology", "--machine", "a2-ultragpu-2g-mig")
    assert matrix(text)[1][:3] == ["gpu-0", "gpu-1", "NUMA"]
    assert "gpu-0, gpu-1 can be partitioned into 7 x 1g.10gb, 4 x 1g.20gb, 3 x 2g.20gb, 2 x 3g.40gb" in text


def held(node, *devices, driver="nvidia.hami.io", name="held"):
    """A claim that holds devices: a name, or a name and what is consumed of it."""
    results = []
    for item in devices:
        device, consumed = item if isinstance(item, tuple) else (item, {})
        results.append({"request": "r", "driver": driver, "pool": node, "device": device, "consumedCapacity": consumed})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


@pytest.mark.parametrize(
    ("machine_name", "driver", "devices", "free"),
    [
        (
            "g5.12xlarge",
            "nvidia.hami.io",
            [
                ("gpu-0", {"memory": "8Gi", "cores": "30", "shares": "1"}),
                ("gpu-0", {"memory": "4Gi", "cores": "0", "shares": "1"}),
                ("gpu-2", {"memory": "23028Mi", "cores": "100", "shares": "1"}),
            ],
            {"gpu-0": "10740Mi of 23028Mi memory, 70 of 100 cores, 8 of 10 shares", "gpu-1": "all", "gpu-2": "nothing"},
        ),
        (
            "a2-ultragpu-2g-mig",
            "nvidia.hami.io",
            ["gpu-0-mig-1g-10gb-0", "gpu-0-mig-2g-20gb-2", ("gpu-1", {"memory": "8Gi", "cores": "0", "shares": "1"})],
            {
                "gpu-0": "cut: mig-1g-10gb-0, mig-2g-20gb-2",
                "gpu-1": "72Gi of 80Gi memory, 100 of 100 cores, 9 of 10 shares",
            },
        ),
        (
            "inf2.48xlarge",
            "neuron.hami.io",
            [("neuron-3", {"neuroncores": "1"}), ("neuron-4", {"neuroncores": "2"})],
            {"neuron-3": "1 of 2 neuroncores", "neuron-4": "nothing", "neuron-5": "all"},
        ),
    ],
    ids=["shared", "cut", "cores"],
)
def test_what_is_free_of_a_card(cluster, machine_name, driver, devices, free):
    for body in slice_bodies(machine_pools(machine(machine_name, "n1"))):
        ask(cluster.create(RESOURCE_SLICE, body))
    claim = held("n1", *devices, driver=driver)
    status = claim.pop("status")
    ask(cluster.create(RESOURCE_CLAIM, claim))
    ask(cluster.patch(RESOURCE_CLAIM, "held", {"status": status}, namespace="default", subresource="status"))
    lines = run("topology", "n1").splitlines()
    assert lines[1].rstrip().endswith("FREE")
    column = lines[1].index("FREE")
    shown = {line.split()[0]: line[column:].strip() for line in lines[2:] if line.strip()}
    assert {name: shown[name] for name in free} == free


def test_files_may_say_what_is_allocated(tmp_path):
    path = tmp_path / "held.yaml"
    path.write_text(yaml.safe_dump(held("g5-12xlarge", "gpu-1")))
    text = run("topology", "-f", ROOT / "resourceslices/g5.12xlarge.yaml", "-f", path)
    assert [line.split()[-1] for line in text.splitlines()[2:6]] == ["all", "1", "all", "all"]
    assert "shared by 1" in text


@pytest.mark.parametrize("parameters", [{"a": {"b": [1, None]}}, {}, {"priority": 0}])
def test_a_claim_with_parameters_is_read_as_by_other_commands(tmp_path, parameters):
    """`Expected raw, got object`, of each snapshot with such a claim."""
    body = held("g5-12xlarge", "gpu-1")
    config = [{"source": "FromClaim", "opaque": {"driver": "nvidia.hami.io", "parameters": parameters}}]
    body["spec"]["devices"]["config"] = [{"opaque": config[0]["opaque"]}]
    body["status"]["allocation"]["devices"]["config"] = config
    path = tmp_path / "held.yaml"
    path.write_text(yaml.safe_dump(body))
    assert "shared by 1" in run("topology", "-f", ROOT / "resourceslices/g5.12xlarge.yaml", "-f", path)


def test_a_card_with_a_fault_says_so(tmp_path):
    found = machine("g5.12xlarge", "n1")
    sick = replace(found.cards[1], faults=(Fault(code="xid-79", message="fell off the bus"),))
    found = replace(found, cards=(found.cards[0], sick, *found.cards[2:]))
    path = tmp_path / "slices.yaml"
    path.write_text(yaml.safe_dump_all(slice_bodies(machine_pools(found))))
    lines = run("topology", "-f", path).splitlines()
    assert lines[1].split()[-1] == "TAINTS"
    assert lines[3].split()[-1] == "hami.io/xid=xid-79:NoSchedule"


def test_a_live_node_shows_its_newest_slices(cluster):
    for generation, suffix in ((1, "old"), (2, "")):
        (body,) = slice_bodies(machine_pools(machine("g5.12xlarge", "n1")), generation)
        body["metadata"]["name"] += suffix
        ask(cluster.create(RESOURCE_SLICE, body))
    assert len(matrix(run("topology", "n1"))) == 8
    assert run("topology") == run("topology", "n1")  # without a name all nodes, here one


def test_several_nodes_of_files_and_one_of_them():
    folder = ROOT / "resourceslices"
    assert run("topology", "-f", folder).count("(nvidia.hami.io)") == 10
    assert run("topology", "g5-12xlarge", "-f", folder).count("(nvidia.hami.io)") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--machine", "dgx-h100", "-f", "x"), "leave out --filename and --selector"),
        (("n1", "-l", "a=b"), "leave out -l, or the name of the node"),
        (("-l", "a=(", "-f", str(ROOT / "resourceslices")), "--selector: label selector"),
        (("--machine", "nope"), "there is no machine 'nope'"),
        (("-f", "/nonexistent.yaml"), "/nonexistent.yaml"),
        (("elsewhere", "-f", str(ROOT / "resourceslices")), "no devices of node elsewhere are published"),
    ],
)
def test_topology_says_what_to_do(arguments, said):
    assert said in refused("topology", *arguments)


def test_a_node_without_slices_is_an_error_and_so_is_one_that_is_not_there(cluster):
    assert "there is no node n1" in refused("topology", "n1")
    asyncio.run(cluster.create(NODE, {"metadata": {"name": "n1"}}))
    assert "the cluster: no devices of node n1" in refused("topology", "n1")


@pytest.mark.parametrize("command", ["slices", "topology"])
def test_help_has_examples(command):
    text = run(command, "--help")
    assert "Examples" in text
    assert f"hami-dra {command} --machine" in text
