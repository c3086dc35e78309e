"""A write that was asked for while this process led is sent within the write timeout or not at all, however its loop froze."""

import time
from dataclasses import dataclass

import pytest

from hami_dra.api import kinds
from hami_dra.kube.credentials import Access
from hami_dra.kube.http import HttpCluster
from hami_dra.kube.protocol import Unavailable
from hami_dra.kube.transport import Timeouts
from tests.support.scripted_server import Answer, Server

POD = {"metadata": {"name": "a", "namespace": "default", "uid": "1", "resourceVersion": "2"}}


@dataclass
class Freezing:
    """An identity whose loop stands still for a while, as when another task of it decides for that long."""

    seconds: float = 0.0

    async def header(self, *, renew=False):
        time.sleep(self.seconds)  # noqa: ASYNC251 (the loop must stand still)
        return ""


@pytest.mark.parametrize("verb", ["patch", "create", "delete"])
async def test_a_write_is_not_sent_after_its_time_when_the_loop_was_frozen(verb):
    server, identity = Server(), Freezing()
    server.will(Answer(POD))
    await server.server.start_server()
    cluster = HttpCluster(Access(server.url, identity=identity), timeouts=Timeouts(write=0.2))

    async def write():
        match verb:
            case "patch":
                await cluster.patch(kinds.POD, "a", {"metadata": {"labels": {"b": "c"}}}, namespace="default")
            case "create":
                await cluster.create(kinds.POD, POD)
            case "delete":
                await cluster.delete(kinds.POD, "a", namespace="default")

    await write()  # afterwards there is a connection, and nothing to wait for before the next one is sent
    assert len(server.seen) == 1
    identity.seconds = 0.4
    with pytest.raises(Unavailable):
        await write()
    identity.seconds = 0.0
    await write()
    assert len(server.seen) == 2
    await cluster.close()
    await server.server.close()
