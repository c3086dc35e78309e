"""Partitions that the vendor's container runtime creates: this driver promises them, and creates nothing."""

from msgspec.structs import replace

from hami_dra.api.containers import Edits
from hami_dra.driver.prepare.assembly import transactions_of
from hami_dra.driver.prepare.inventory import inventory_of
from hami_dra.vendors.grants import ByAmount
from hami_dra.vendors.nvidia.containers import NvidiaContainers
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from tests.support.preparing import DRIVER, NODE, PreparedNode, claim, env_of, pod, result

SMALL, OTHER, WHOLE = "gpu-2-mig-1g-5gb-0", "gpu-2-mig-1g-5gb-1", "gpu-2"


class ByRuntime(ByAmount):
    """The cards of the pretended node, whose partitions are left to a container runtime."""

    name = "nvidia"
    driver = DRIVER

    def sites(self, cards):
        return {
            name: replace(site, partition=site.partition and replace(site.partition, by_runtime=True), cuttable=False)
            for name, site in NvidiaContainers().sites(cards).items()
        }

    def edits(self, tenancies, place, host):
        return Edits(env={"PROFILES": ",".join(each.profile for each in tenancies)})


class NodeWithoutPartitioner(PreparedNode):
    vendor = ByRuntime()

    def _inventory(self):
        published = NvidiaPublishing()
        devices, counters = published.devices(self.cards, self.sharing), published.counter_sets(self.cards)
        return inventory_of(DRIVER, NODE, devices, self.vendor.sites(self.cards), counters)

    def make_work(self):
        return transactions_of(
            lambda: self.inventory,
            vendor=self.vendor,
            host=self.host,
            partitioner=None,
            state_folder=self.state,
            cdi_folder=self.cdi,
            files=self.files,
        )


def test_the_vendor_learns_the_profile_and_nothing_is_created(tmp_path):
    node = NodeWithoutPartitioner(tmp_path)
    c = claim("c", result(SMALL))
    first = node.prepare(c, pods=[pod()])
    (document,) = node.specs().values()
    assert env_of(document["devices"][0])["PROFILES"] == "1g.5gb"
    assert node.instances() == []
    node.restart()
    assert node.prepare(c, pods=[pod()]) == first
    assert node.unprepare(c) == {"uid-c": ""}
    assert node.traces() == []


def test_partitions_of_one_card_exclude_the_card_and_not_each_other(tmp_path):
    node = NodeWithoutPartitioner(tmp_path)
    held = node.prepare(claim("a", result(SMALL)), claim("b", result(OTHER)), pods=[pod()])
    assert [not isinstance(outcome, str) for outcome in held.values()] == [True, True]
    outcome = node.prepare(claim("c", result(WHOLE)), pods=[pod()])["uid-c"]
    assert isinstance(outcome, str)
