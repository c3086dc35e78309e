"""C3, of the search: one that explodes on a node is bounded, in attempts of twice the length of the one before, and holds up nobody."""

from controller.allocation.search import Search
from controller.decide import decide
from hami_dra.api import kinds
from tests.hostile.counted_work import CountedWork
from tests.support.harness import DRIVER, claim, play, pod

STEP = 5e-6
"""Seconds of CPU: what a step takes on a busy machine."""
MOST = 0.25
"""Seconds of CPU that one decision may take."""
CLAIMS = 17


class Work(CountedWork):
    """CPU time that passes only while searches go on."""

    def __init__(self, monkeypatch):
        super().__init__()
        step = Search.step

        def counted(search, cost=1):
            self.seconds += cost * STEP
            step(search, cost)

        monkeypatch.setattr(Search, "step", counted)


def of_one_rack(number):
    """Eight racks hold two of these each, and no count shows that a seventeenth is too many."""
    made = claim(f"rack-{number}", count=6)
    del made["spec"]["devices"]["requests"][0]["exactly"]["capacity"]
    made["spec"]["devices"]["constraints"] = [{"matchAttribute": f"{DRIVER}/rack"}]
    return made


async def add_racks(harness):
    devices = [{"name": f"gpu-{number}", "attributes": {"rack": {"int": number // 16}}} for number in range(128)]
    spec = {"driver": DRIVER, "nodeName": "n0", "devices": devices}
    pool = {"name": "cards", "generation": 1, "resourceSliceCount": 1}
    await harness.add(kinds.RESOURCE_SLICE, {"metadata": {"name": "cards"}, "spec": {**spec, "pool": pool}})


def test_a_search_that_explodes_is_bounded_and_given_up(monkeypatch):
    work = Work(monkeypatch)

    async def story(harness):
        work.watch(harness)
        await add_racks(harness)
        await harness.add(kinds.RESOURCE_CLAIM, *map(of_one_rack, range(CLAIMS)), claim("small"))
        claims = [f"rack-{number}" for number in range(CLAIMS)]
        await harness.add(kinds.POD, pod("hog", claims=claims, gated=True), pod("honest", claims=["small"], gated=True))
        await harness.bound("honest", seconds=2)
        await harness.sleep(30)
        reported = [event["note"] for event in await harness.events() if event["regarding"]["name"] == "hog"]
        assert any("the search for devices was given up after" in note for note in reported)
        assert work.longest < MOST
        assert work.seconds > work.longest, "it took more than one attempt"

    play(story, nodes=1, decide=decide, quiet_time=0.0, probe=False)
