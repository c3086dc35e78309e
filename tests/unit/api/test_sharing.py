"""Parts of objects that are shared: equal objects stay equal, different ones stay different."""

import json

import pytest

from hami_dra.api.core import Container
from hami_dra.api.kinds import POD
from hami_dra.kube.decoding import read_object

PARTS = {
    "name": "other",
    "image": "app:1",
    "resources": {"requests": {"cpu": "2"}},
    "ports": [{"containerPort": 80, "hostPort": 80}],
    "restartPolicy": "Always",
    "restartPolicyRules": [{"action": "RestartAllContainers"}],
}


def read(container):
    raw = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", **container}]}}
    found, _ = read_object(POD, json.dumps(raw).encode())
    return found.spec.containers


def test_every_part_of_a_container_is_here():
    assert len(PARTS) == len(Container.__struct_fields__)


@pytest.mark.parametrize("part", PARTS)
def test_containers_that_differ_in_one_part_are_not_shared(part):
    plain, special = read({}), read({part: PARTS[part]})
    assert plain != special
    assert read({}) is plain
    assert read({part: PARTS[part]}) is special
