"""The fleet file, and what it asks for."""

import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from hami_dra.api.config import FleetFile
from hami_dra.api.errors import ConfigError
from hami_dra.driver.fleet.nodes import planned_nodes, sharing_settings
from hami_dra.vendors.nvidia.options import MEMORY_SCALING


def file(**fields):
    return FleetFile.model_validate(fields)


def test_names_count_from_zero_and_may_have_leading_zeros():
    planned = planned_nodes(
        file(
            nodes=[
                {"machine": "g4dn.12xlarge", "count": 2},
                {"machine": "dgx-h100", "count": 2, "name": "train-{index:03}"},
                {"machine": "g5.12xlarge", "name": "a10g"},
            ]
        )
    )
    assert list(planned) == ["g4dn-12xlarge-0", "g4dn-12xlarge-1", "train-000", "train-001", "a10g"]


def test_zones_are_dealt_out_in_turn_over_all_nodes():
    planned = planned_nodes(
        file(
            nodes=[{"machine": "g4dn.12xlarge", "count": 2}, {"machine": "g5.12xlarge", "count": 3}],
            zones=["a", "b", "c"],
        )
    )
    zones = [node.body["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in planned.values()]
    assert zones == ["a", "b", "c", "a", "b"]


def labels(planned, key):
    return [node.body["metadata"]["labels"].get(key) for node in planned.values()]


def test_nodes_that_follow_each_other_share_racks_and_blocks():
    rack, block = "cloud.provider.com/topology-rack", "cloud.provider.com/topology-block"
    levels = [{"label": block, "nodes": 4}, {"label": rack, "nodes": 2, "value": "r{index:02}"}]
    planned = planned_nodes(file(nodes=[{"machine": "dgx-h100", "count": 5, "topology": levels}]))
    assert labels(planned, rack) == ["r00", "r00", "r01", "r01", "r02"]
    assert labels(planned, block) == ["topology-block-0"] * 4 + ["topology-block-1"]


def test_the_value_of_a_level_must_count():
    with pytest.raises(ValidationError, match=re.escape("put {index} into it")):
        file(nodes=[{"machine": "dgx-h100", "topology": [{"label": "rack", "nodes": 2, "value": "a"}]}])


def test_three_domains_of_eighteen_nodes_are_a_few_lines():
    planned = planned_nodes(file(nodes=[{"machine": "gb200-nvl72", "count": 54, "name": "nvl-{index}"}]))
    cliques = labels(planned, "nvidia.com/gpu.clique")
    assert [cliques.count(each) for each in dict.fromkeys(cliques)] == [18, 18, 18]
    for node, clique in zip(planned.values(), cliques, strict=True):
        own = [each["attributes"] for pool in node.pools for part in pool.slices for each in part.devices]
        assert len(own) == 4
        assert {f"{each['clusterUUID']['string']}.{each['cliqueID']['int']}" for each in own} == {clique}


def test_a_domain_is_partitioned_into_cliques():
    group = {"machine": "gb200-nvl72", "count": 36, "cliques": [12, 6]}
    cliques = labels(planned_nodes(file(nodes=[group])), "nvidia.com/gpu.clique")
    assert [cliques.count(each) for each in dict.fromkeys(cliques)] == [12, 6, 12, 6]
    assert len({each.partition(".")[0] for each in cliques}) == 2


@pytest.mark.parametrize(
    ("machine", "problem"),
    [("gb200-nvl72", "the fabric of gb200-nvl72 has 18"), ("dgx-h100", "dgx-h100 has no fabric")],
)
def test_cliques_must_make_up_the_fabric(machine, problem):
    with pytest.raises(ConfigError, match=re.escape(f"nodes[0]: cliques: {problem}")):
        planned_nodes(file(nodes=[{"machine": machine, "cliques": [4, 4]}]))


def test_a_node_as_it_is_created():
    (node,) = planned_nodes(
        file(
            name="lab",
            nodes=[
                {
                    "machine": "g5.12xlarge",
                    "name": "gpu",
                    "labels": {"team": "red"},
                    "annotations": {"kwok.x-k8s.io/node": "fake"},
                    "taints": [{"key": "gpu", "effect": "NoSchedule"}],
                    "allocatable": {"nvidia.com/gpu": 4, "cpu": "4000m"},
                }
            ],
        )
    ).values()
    assert node.body == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "gpu",
            "labels": {
                "kubernetes.io/hostname": "gpu",
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "g5.12xlarge",
                "team": "red",
                "hami.io/fleet": "lab",
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    }
    assert node.resources == {
        "cpu": "4",
        "memory": "192Gi",
        "ephemeral-storage": "1Ti",
        "pods": "110",
        "nvidia.com/gpu": "4",
    }
    (pool,) = node.pools
    assert (pool.driver, pool.node, pool.labels) == ("nvidia.hami.io", "gpu", {"hami.io/fleet": "lab"})


def test_sharing_of_the_fleet_and_of_a_group():
    planned = planned_nodes(
        file(
            sharing={"slots": 4},
            nodes=[
                {"machine": "g4dn.12xlarge", "name": "a"},
                {"machine": "g4dn.12xlarge", "name": "b", "sharing": {"memoryScaling": 1.5}},
            ],
        )
    )
    first, second = (planned[name].pools[0].slices[0].devices[0]["capacity"] for name in "ab")
    assert (first["shares"]["value"], first["memory"]["value"]) == ("4", "15Gi")
    assert (second["shares"]["value"], second["memory"]["value"]) == ("10", "23040Mi")


def test_numbers_are_taken_as_they_are_written():
    for written in (1.8, "1.8", "9/5"):
        assert sharing_settings(file(sharing={"memoryScaling": written}).sharing)[MEMORY_SCALING] == Fraction(18, 10)


def test_a_group_may_be_published_as_another_driver():
    (node,) = planned_nodes(file(nodes=[{"machine": "trn1.32xlarge", "publishAs": "neuron.aws.com"}])).values()
    assert [pool.driver for pool in node.pools] == ["neuron.aws.com"]


@pytest.mark.parametrize(
    ("fields", "where", "what"),
    [
        ({"nodes": [{"machine": "g4dn.12xlarge", "count": 2, "name": "x"}]}, "nodes.0", "put {index} into it"),
        ({"nodes": [{"machine": "g4dn.12xlarge", "name": "Bad_Name"}]}, "nodes.0", "cannot be the name of a node"),
        ({"nodes": [{"machine": "a", "name": "x"}, {"machine": "b", "name": "x"}]}, "", "two nodes would be named 'x'"),
        ({"nodes": [{"machine": "a", "count": -1}]}, "nodes.0.count", "greater than or equal to 0"),
        (
            {"nodes": [{"machine": "a", "allocatable": {"cpu": "4x"}}]},
            "nodes.0.allocatable.cpu",
            "'4x' is not a quantity",
        ),
        (
            {"nodes": [{"machine": "a", "labels": {"zone": "a b"}}]},
            "nodes.0.labels.zone",
            "cannot be the value of a label",
        ),
        (
            {"nodes": [{"machine": "a", "taints": [{"key": "k", "effect": "Never"}]}]},
            "nodes.0.taints.0.effect",
            "NoSchedule",
        ),
        ({"nodes": [{"machine": "a", "machin": "b"}]}, "nodes.0.machin", "Extra inputs"),
        ({"zones": ["a/b"]}, "zones.0", "cannot be the value of a label"),
        ({"kind": "Flotilla"}, "kind", "Fleet"),
        ({"name": ""}, "name", "at least 1"),
    ],
)
def test_a_bad_file_names_the_field(fields, where, what):
    with pytest.raises(ValidationError) as caught:
        file(**fields)
    (error,) = caught.value.errors()
    assert ".".join(map(str, error["loc"])) == where
    assert what in error["msg"]


@pytest.mark.parametrize(
    ("group", "what"),
    [
        ({"machine": "dgx"}, r"nodes\[1\]: there is no machine 'dgx'; choose one of: .*dgx-h100"),
        ({"machine": "g5.12xlarge", "mig": True}, r"nodes\[1\]: mig: g5.12xlarge has no GPU that supports MIG"),
        ({"machine": "dgx-h100", "publishAs": "neuron.aws.com"}, r"nodes\[1\]: dgx-h100 has no cards"),
        (
            {"machine": "dgx-h100", "sharing": {"slots": 0}},
            r"nodes\[1\]: sharing.slots: 0 is not a whole number from 1 to 1000000",
        ),
        (
            {"machine": "dgx-h100", "sharing": {"parts": 2}},
            r"nodes\[1\]: sharing.parts: there is no such field; .*slices",
        ),
        ({"machine": "dgx-h100", "sharing": {"memoryScaling": "1e-9"}}, r"nodes\[1\]: .*not enough to be shared"),
    ],
)
def test_what_cannot_be_published_names_the_entry(group, what):
    with pytest.raises(ConfigError, match=what):
        planned_nodes(file(nodes=[{"machine": "dgx-h100"}, {"name": "x"} | group]))


def test_mig_mode_of_a_group_in_place_of_the_machines():
    def names(**group):
        (planned,) = planned_nodes(file(nodes=[{"name": "x", **group}])).values()
        return [device["name"] for content in planned.pools[0].slices for device in content.devices]

    assert len(names(machine="dgx-a100")) == 8
    assert len(names(machine="dgx-a100", mig=True)) == 8 + 8 * 18
    assert len(names(machine="a2-ultragpu-2g-mig")) == 2 + 2 * 18
    assert names(machine="a2-ultragpu-2g-mig", mig=False) == ["gpu-0", "gpu-1"]


def test_slices_of_a_card_are_a_setting():
    planned = planned_nodes(
        file(
            sharing={"slices": 3},
            nodes=[
                {"machine": "s60-8", "name": "a"},
                {"machine": "s60-8", "name": "b", "sharing": {"slices": 6}},
            ],
        )
    )
    slices = [node.pools[0].slices[0].devices[0]["capacity"]["slices"]["value"] for node in planned.values()]
    assert slices == ["3", "6"]


def test_the_documented_fleet_file_is_one():
    text = (Path(__file__).resolve().parents[4] / "docs/publishing.md").read_text()
    (example,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Fleet" in block]
    planned = planned_nodes(FleetFile.model_validate(yaml.safe_load(example)))
    assert list(planned)[:5] == ["t4-0", "t4-1", "t4-2", "a10g", "nvl-00"]
    assert [planned[name].pools[0].driver for name in ("t4-2", "a10g")] == ["nvidia.hami.io", "gpu.nvidia.com"]
    assert len(dict.fromkeys(labels(planned, "nvidia.com/gpu.clique"))) == 1 + 3 * 2  # None, and two a domain
    assert planned["train-31"].body["metadata"]["labels"]["cloud.provider.com/topology-rack"] == "rack-3"
