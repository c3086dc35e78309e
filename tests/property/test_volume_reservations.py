"""Volumes come, go, come again under their names, fail and go to others: pods that are about to be bound have one each, where there are
enough, and newcomers get only what is left. The oracle counts: all volumes are alike, and every node reaches them.
"""

import random

import pytest

from tests.support.examples import examples
from tests.unit.rules.volumes.test_volume_filters import World, pod

VOLUMES = [f"pv{number}" for number in range(5)]
STEPS = 40


class Life:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.world = World()
        self.world.storage_class("local", provisioner="kubernetes.io/no-provisioner")
        self.free = set()
        """Volumes that any claim may have."""
        self.there = set()
        self.pods = {}
        self.number = 0
        self.world.claim("probe", storage_class="local")

    def step(self):
        self.random.choice([self.volume_comes, self.volume_goes, self.volume_changes, self.pod_comes, self.pod_goes])()

    def volume_comes(self):
        name = self.random.choice(VOLUMES)
        self.world.volume(name, storage_class="local")
        self.there.add(name)
        self.free.add(name)

    def volume_goes(self):
        if self.there:
            name = self.random.choice(sorted(self.there))
            self.world.put("PersistentVolume", name, gone=True, spec={"storageClassName": "local"})
            self.there.discard(name)
            self.free.discard(name)

    def volume_changes(self):
        if self.there:
            name = self.random.choice(sorted(self.there))
            taken = self.random.choice(
                [{"phase": "Failed"}, {"claim": "of-others"}, {"claim": "of-others", "phase": "Bound"}]
            )
            self.world.volume(name, storage_class="local", **taken)
            self.free.discard(name)

    def pod_comes(self):
        name = f"p{self.number}"
        if len(self.free) > len(self.pods):
            self.number += 1
            self.world.claim(name, storage_class="local")
            self.pods[name] = pod(name, name=name), self.random.choice("abc")
            self.world.run(*self.pods[name])

    def pod_goes(self):
        if self.pods:
            self.world.stop(*self.pods.pop(self.random.choice(sorted(self.pods))))


@pytest.mark.parametrize("seed", range(examples(40)))
def test_newcomers_get_only_the_volumes_that_are_left(seed):
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
        assert (life.world.fits(pod("probe", name="probe")) == "abc") == (len(life.free) > len(life.pods))
