"""From the discovery of Acme's cards to a pod that is placed and prepared. Prints what came out as JSON.

Run by `tests/unit/vendors/test_sixth_vendor.py` in a process of its own, since plugins are found when the registry is imported.
Arguments: a folder for state. `acme-smi` is in PATH.
"""

import json
import sys
from pathlib import Path

from hami_dra.api.hardware import Machine
from hami_dra.driver.prepare.assembly import transactions_of
from hami_dra.driver.prepare.inventory import inventory_of
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.vendors.registry import plugin_names, plugin_of
from tests.support.containers import PretendHost
from tests.support.manifests import node, pod, simulated
from tests.support.preparing import NODE, RootedFiles, claim, only, prepare_job
from tests.support.preparing import pod as known_pod
from tests.support.settings import vendor_settings


def story(root: Path) -> dict[str, object]:
    acme = plugin_of("acme")
    cards = acme.backend(root / "state").discover().cards
    machine = Machine(name=NODE, instance_type="acme-2", cpu=8, memory=64 << 30, cards=cards)
    cluster = [*acme.publishing.device_classes(), node(NODE), *slice_bodies(machine_pools(machine))]
    wanted = pod("p", limits={"acme.example.com/card": 1, "acme.example.com/memory": 4096})
    (placed,) = simulated(cluster, wanted).placements
    (allocation,) = [each["allocation"]["devices"] for each in placed["claims"]]
    devices = acme.publishing.devices(cards, vendor_settings())
    published = inventory_of(acme.driver, NODE, devices, acme.containers.sites(cards))
    transactions = transactions_of(
        lambda: published,
        vendor=acme.containers,
        host=PretendHost("/dev/acme0", "/dev/acme1"),
        partitioner=None,
        state_folder=root / "state",
        cdi_folder=root / "cdi",
        files=RootedFiles(root),
    )
    transactions.start()
    transactions.run([prepare_job(claim("c", *allocation["results"]), pods=[known_pod()])])
    specs = {path.name: json.loads(path.read_bytes()) for path in (root / "cdi").glob("*.json")}
    return {
        "vendors": plugin_names(),
        "cards": [card.uuid for card in cards],
        "placed": [placed["node"], *((each["driver"], each["device"]) for each in allocation["results"])],
        "edits": only(specs)["containerEdits"],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(story(Path(sys.argv[1]))))
