"""The driver's sockets, with a kubelet that is played by a real gRPC client."""

import asyncio
import contextlib
import logging
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import grpc.aio
import pytest

from hami_dra.driver.kubelet import sockets
from hami_dra.driver.kubelet.health import Bulletin
from hami_dra.driver.kubelet.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    health_v1_pb2,
    health_v1_pb2_grpc,
    health_v1alpha1_pb2,
    health_v1alpha1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from hami_dra.driver.kubelet.protocol import ClaimRef, DeviceHealth, PreparedDevice, Verdict
from hami_dra.driver.kubelet.server import KubeletPlugin

DRIVER = "nvidia.hami.io"
DRA = {"v1": (dra_v1_pb2, dra_v1_pb2_grpc), "v1beta1": (dra_v1beta1_pb2, dra_v1beta1_pb2_grpc)}
HEALTH = {
    "v1": (health_v1_pb2, health_v1_pb2_grpc),
    "v1alpha1": (health_v1alpha1_pb2, health_v1alpha1_pb2_grpc),
}


class Prepares:
    """A Preparation that remembers. `answer`: what prepare says instead; `gate`: it waits for that first."""

    def __init__(self):
        self.calls = []
        self.answer = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def prepare(self, claims):
        self.calls.append(("prepare", claims))
        await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            return self.answer
        return {claim.uid: (device(claim),) for claim in claims}

    async def unprepare(self, claims):
        self.calls.append(("unprepare", claims))
        return {claim.uid: "" for claim in claims}


def device(claim):
    ids = (f"{DRIVER}/claim={claim.uid}",)
    return PreparedDevice(requests=("gpu",), pool="node", device="gpu-0", cdi_ids=ids, share_id=f"share-{claim.uid}")


class Healths:
    def __init__(self, *devices):
        self.devices = devices
        self.news = asyncio.Event()

    def current(self):
        self.news.clear()
        return self.devices

    async def changed(self):
        await self.news.wait()

    def become(self, *devices):
        self.devices = devices
        self.news.set()


@pytest.fixture
def root():
    """kubelet's root folder: short, for the paths of sockets are."""
    folder = Path(tempfile.mkdtemp(prefix="k"))
    yield folder
    shutil.rmtree(folder)


def plugin(root, preparation, health=None, **options):
    return KubeletPlugin(
        DRIVER,
        preparation,
        health or Healths(),
        folder=root / "plugins" / DRIVER,
        registry=root / "plugins_registry",
        **{"linger": 0.0} | options,
    )


@contextlib.asynccontextmanager
async def running(plugin):
    await plugin.start()
    try:
        yield plugin
    finally:
        await plugin.stop()


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


@contextlib.asynccontextmanager
async def connected(path):
    async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
        yield channel


async def until(happened):
    while not happened():  # noqa: ASYNC110 (files and logs tell nobody)
        await asyncio.sleep(0.01)


async def register(path, *, accepted=True, error=""):
    """As kubelet does for a socket that appeared. Out: what the plugin says of itself."""
    async with connected(path) as channel:
        stub = registration_pb2_grpc.RegistrationStub(channel)
        info = await stub.GetInfo(registration_pb2.InfoRequest())
        status = registration_pb2.RegistrationStatus(plugin_registered=accepted, error=error)
        await stub.NotifyRegistrationStatus(status)
    return info


async def call(path, method, *uids, version="v1"):
    messages, grpcs = DRA[version]
    claims = [messages.Claim(namespace="ns", name=f"claim-{uid}", uid=uid) for uid in uids]
    async with connected(path) as channel:
        request = getattr(messages, f"{method}Request")(claims=claims)
        answer = await getattr(grpcs.DRAPluginStub(channel), method)(request)
    return dict(answer.claims)


async def test_it_registers_and_says_what_it_serves(root):
    async with running(plugin(root, Prepares())) as served:
        assert not served.registered.is_set()
        info = await register(root / "plugins_registry" / f"{DRIVER}-reg.sock")
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert info.endpoint == str(root / "plugins" / DRIVER / "dra.sock")
        assert list(info.supported_versions) == [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        ]
        assert served.registered.is_set()
        assert mode(info.endpoint) == 0o600
    assert not served.registered.is_set()
    assert [path for path in root.rglob("*") if path.is_socket()] == []


async def test_a_refusal_of_kubelet_is_told_and_it_may_ask_again(root, caplog):
    async with running(plugin(root, Prepares())) as served:
        await register(served.registration_socket, accepted=False, error="version not supported")
        assert not served.registered.is_set()
        assert f"kubelet refuses driver {DRIVER}: version not supported" in caplog.text
        await register(served.registration_socket)
        await register(served.registration_socket)  # kubelet restarted
        assert served.registered.is_set()


@pytest.mark.parametrize("version", DRA)
async def test_claims_are_prepared_and_unprepared(root, version):
    prepares = Prepares()
    async with running(plugin(root, prepares)) as served:
        answers = await call(served.service_socket, "NodePrepareResources", "a", "b", version=version)
        assert sorted(answers) == ["a", "b"]
        found = answers["b"].devices[0]
        assert (list(found.request_names), found.pool_name, found.device_name) == (["gpu"], "node", "gpu-0")
        assert list(found.cdi_device_ids) == [f"{DRIVER}/claim=b"]
        assert answers["b"].error == ""
        if version == "v1":
            assert found.share_id == "share-b"
        answers = await call(served.service_socket, "NodeUnprepareResources", "a", version=version)
        assert {uid: answer.error for uid, answer in answers.items()} == {"a": ""}
    assert prepares.calls == [
        ("prepare", (ClaimRef("ns", "claim-a", "a"), ClaimRef("ns", "claim-b", "b"))),
        ("unprepare", (ClaimRef("ns", "claim-a", "a"),)),
    ]


@pytest.mark.parametrize(
    ("answer", "errors"),
    [
        ({"a": "no room", "b": ()}, {"a": "no room", "b": ""}),
        ({"b": ()}, {"a": "not prepared: the driver did not say why (this is a bug of it)", "b": ""}),
        (
            RuntimeError("disk on fire"),
            dict.fromkeys("ab", "not prepared: the driver had an internal error; see its log"),
        ),
    ],
    ids=["refused", "forgotten", "broken"],
)
async def test_every_claim_has_an_answer_whatever_happens(root, answer, errors):
    prepares = Prepares()
    prepares.answer = answer
    async with running(plugin(root, prepares)) as served:
        answers = await call(served.service_socket, "NodePrepareResources", "a", "b")
    assert {uid: answer.error for uid, answer in answers.items()} == errors


async def test_a_call_under_way_is_answered_before_it_deregisters_and_stops(root):
    prepares = Prepares()
    prepares.gate.clear()
    served = plugin(root, prepares)
    await served.start()
    under_way = asyncio.create_task(call(served.service_socket, "NodePrepareResources", "a"))
    await until(lambda: prepares.calls)
    stopping = asyncio.create_task(served.stop())
    assert (await call(served.service_socket, "NodeUnprepareResources", "b"))["b"].error == ""
    assert served.registration_socket.exists()
    prepares.gate.set()
    assert (await under_way)["a"].error == ""
    await stopping
    assert not served.registration_socket.exists()
    await served.stop()


async def test_a_call_that_hangs_does_not_hold_it_up_for_ever(root):
    prepares = Prepares()
    prepares.gate.clear()
    served = plugin(root, prepares, drain=0.05)
    await served.start()
    under_way = asyncio.create_task(call(served.service_socket, "NodePrepareResources", "a"))
    await until(lambda: prepares.calls)
    await served.stop()
    assert [path for path in root.rglob("*") if path.is_socket()] == []
    with pytest.raises(grpc.aio.AioRpcError):
        await under_way


async def test_a_stop_that_is_cancelled_deregisters(root):
    prepares = Prepares()
    prepares.gate.clear()
    served = plugin(root, prepares)
    await served.start()
    under_way = asyncio.create_task(call(served.service_socket, "NodePrepareResources", "a"))
    await until(lambda: prepares.calls)
    stopping = asyncio.create_task(served.stop())
    await call(served.service_socket, "NodeUnprepareResources", "b")
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not served.registration_socket.exists()
    prepares.gate.set()
    with contextlib.suppress(grpc.aio.AioRpcError):
        await under_way


async def test_a_start_that_fails_leaves_the_sockets_of_the_one_that_serves(root):
    async with running(plugin(root, Prepares())) as first:
        second = plugin(root, Prepares())
        with pytest.raises(sockets.SocketError, match="is served by another process"):
            await second.start()
        await second.stop()
        info = await register(first.registration_socket)
        assert (await call(info.endpoint, "NodePrepareResources", "a"))["a"].error == ""


async def test_what_took_the_name_while_it_stopped_is_left_alone(root):
    prepares = Prepares()
    old = plugin(root, prepares, drain=0.0)
    await old.start()
    prepares.gate.clear()
    under_way = asyncio.create_task(call(old.service_socket, "NodePrepareResources", "a"))
    await until(lambda: prepares.calls)
    stopping = asyncio.create_task(old.stop())
    await until(lambda: not old.service_socket.exists())
    async with running(plugin(root, Prepares())) as new:
        prepares.gate.set()
        await stopping
        assert (await under_way)["a"].error == ""
        assert (await call(new.service_socket, "NodePrepareResources", "b"))["b"].error == ""


async def test_kubelet_is_told_absolute_paths(root, monkeypatch):
    monkeypatch.chdir(root)
    async with running(plugin(Path(), Prepares())) as served:
        info = await register(served.registration_socket)
        assert info.endpoint == str(Path.cwd() / "plugins" / DRIVER / "dra.sock")


# --- two instances ---------------------------------------------------------------------------------------------------


async def test_an_update_without_a_gap(root):
    old, new = Prepares(), Prepares()
    async with running(plugin(root, new, instance="uid-2")) as second:
        async with running(plugin(root, old, instance="uid-1")) as first:
            assert first.registration_socket != second.registration_socket
            for served in (first, second):
                info = await register(served.registration_socket)
                assert (await call(info.endpoint, "NodePrepareResources", "a"))["a"].error == ""
        assert not first.registration_socket.exists()
        assert not first.service_socket.exists()
        assert (await call(second.service_socket, "NodePrepareResources", "b"))["b"].error == ""
    assert (len(old.calls), len(new.calls)) == (1, 2)


class Kubelet:
    """Plays what kubelet's plugin manager does: a connection for each registration; calls go to the youngest; a registration that is
    gone is noticed at the next look, and its connection is closed, whatever is under way on it.
    """

    def __init__(self, registry):
        self.registry = registry
        self.known = {}

    async def run(self):
        while True:
            await self.look()
            await asyncio.sleep(0.05)

    async def look(self):
        present = set(self.registry.glob("*-reg.sock"))
        for gone in self.known.keys() - present:
            await self.known.pop(gone).close()
        for path in present - self.known.keys():
            info = await register(path)
            self.known[path] = grpc.aio.insecure_channel(f"unix://{info.endpoint}")

    async def prepare(self, uid):
        channel = list(self.known.values())[-1]
        claims = [dra_v1_pb2.Claim(namespace="ns", name=uid, uid=uid)]
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=claims)
        return await dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request)


class Slow(Prepares):
    async def prepare(self, claims):
        await asyncio.sleep(0.02)
        return await super().prepare(claims)


async def test_no_call_fails_while_one_instance_follows_the_other(root):
    """Instances follow each other while calls come all the time, four at once."""
    kubelet = Kubelet(root / "plugins_registry")
    answered = []

    async def calls(caller):
        while True:
            uid = f"{caller}-{len(answered)}"
            answered.append((await kubelet.prepare(uid)).claims[uid].error)

    async with asyncio.TaskGroup() as group:
        old = plugin(root, Slow(), instance="uid-0", linger=0.3)
        await old.start()
        await kubelet.look()
        tasks = [group.create_task(kubelet.run()), *(group.create_task(calls(n)) for n in range(4))]
        for number in range(1, 4):
            new = plugin(root, Slow(), instance=f"uid-{number}", linger=0.3)
            await new.start()
            await new.registered.wait()
            await until(lambda uid=number: any(f"uid-{uid}" in path.name for path in kubelet.known))
            await old.stop()
            old = new
        count = len(answered)
        await until(lambda: len(answered) > count + 8)
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
    await old.stop()
    for channel in kubelet.known.values():
        await channel.close()
    assert set(answered) == {""}


async def test_calls_are_answered_until_kubelet_sees_that_the_registration_is_gone(root):
    served = plugin(root, Prepares(), instance="uid-1", linger=60.0)
    await served.start()
    info = await register(served.registration_socket)
    stopping = asyncio.create_task(served.stop())
    await until(lambda: not served.registration_socket.exists())
    assert (await call(info.endpoint, "NodePrepareResources", "a"))["a"].error == ""
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not served.service_socket.exists()


async def test_what_killed_instances_left_is_removed_and_what_lives_is_not(root):
    folder, registry = root / "plugins" / DRIVER, root / "plugins_registry"
    for path in (folder / "dra-dead.sock", folder / "dra.sock", registry / f"{DRIVER}-dead-reg.sock"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(path))
    async with (
        running(plugin(root, Prepares(), instance="alive")) as first,
        running(plugin(root, Prepares())) as second,
    ):
        served = {first.service_socket, first.registration_socket, second.service_socket, second.registration_socket}
        assert {path for path in root.rglob("*") if path.is_socket()} == served
        with pytest.raises(
            sockets.SocketError, match=r"is served by another process: stop it, or give .*--instance-uid"
        ):
            await plugin(root, Prepares()).start()


def test_long_names_are_shortened_as_kubernetes_own_helper_does():
    registry = Path("/var/lib/kubelet/plugins_registry")
    uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    assert sockets.registration_socket(registry, DRIVER).name == "nvidia.hami.io-reg.sock"
    assert sockets.registration_socket(registry, DRIVER, uid).name == f"nvidia.hami.io-{uid}-reg.sock"
    long = f"{'long-' * 5}driver.example.com"
    assert (
        sockets.registration_socket(registry, long, uid).name == f"{'long-' * 5}driver.example.com-QO1xzFD7RMY-reg.sock"
    )
    longer = f"{'long-' * 9}driver.example.com"
    assert sockets.registration_socket(registry, longer, uid).name.startswith("dra-")
    with pytest.raises(sockets.SocketError, match="choose a shorter --root"):
        sockets.registration_socket(Path("/" + "deep/" * 20), DRIVER, uid)


async def test_a_folder_that_cannot_be_made_is_told(root):
    (root / "plugins").write_text("a file")
    with pytest.raises(sockets.SocketError, match="cannot be created: Not a directory"):
        await plugin(root, Prepares()).start()


# --- health ----------------------------------------------------------------------------------------------------------

WELL = DeviceHealth("node", "gpu-0", Verdict.HEALTHY)
ILL = DeviceHealth("node", "gpu-0", Verdict.UNHEALTHY, "xid-79: " + "x" * 2000)


@contextlib.asynccontextmanager
async def watching(path, version):
    messages, grpcs = HEALTH[version]
    async with connected(path) as channel:
        yield aiter(grpcs.DRAResourceHealthStub(channel).NodeWatchResources(messages.NodeWatchResourcesRequest()))


def said(message):
    return [(each.device.pool_name, each.device.device_name, each.health, each.message) for each in message.devices]


@pytest.mark.parametrize("version", HEALTH)
async def test_every_watch_hears_all_at_once_and_every_change(root, version):
    source = Healths(WELL)
    async with (
        running(plugin(root, Prepares(), source)) as served,
        watching(served.service_socket, version) as first,
        watching(served.service_socket, version) as second,
    ):
        for watch in (first, second):
            message = await anext(watch)
            assert said(message) == [("node", "gpu-0", 1, "")]
            assert message.devices[0].last_updated_time > 1_700_000_000
        source.become(ILL)
        for watch in (first, second):
            verdict = said(await anext(watch))[0]
            assert verdict[2] == 2
            assert verdict[3].endswith("xxx...")
            assert len(verdict[3]) == 1024
        source.become(DeviceHealth("node", "gpu-0", Verdict.UNKNOWN))
        assert said(await anext(first)) == [("node", "gpu-0", 0, "")]
        await served.stop()
        try:
            ended = await anext(first) is None
        except StopAsyncIteration:
            ended = True
        except grpc.aio.AioRpcError as error:  # the socket was closed before the end of the stream was read
            ended = error.code() is grpc.StatusCode.UNAVAILABLE
        assert ended


async def test_it_is_said_again_before_kubelet_doubts():
    bulletin = Bulletin(Healths(WELL), again=0.01)
    reading = asyncio.create_task(bulletin.run())
    issues = bulletin.issues()
    assert [(await anext(issues))[0] for _ in range(3)] == [(WELL,)] * 3
    reading.cancel()


async def test_a_source_that_breaks_is_told_and_asked_again(caplog):
    class Broken(Healths):
        broken = True

        def current(self):
            if self.broken:
                raise RuntimeError("out of order")
            return super().current()

    source = Broken(WELL)
    bulletin = Bulletin(source, again=0.01)
    reading = asyncio.create_task(bulletin.run())
    await until(lambda: "out of order" in caplog.text)
    assert caplog.records[-1].levelno >= logging.ERROR
    source.broken = False
    assert (await anext(bulletin.issues()))[0] == (WELL,)
    reading.cancel()


async def test_a_message_is_cut_between_characters(root):
    source = Healths(DeviceHealth("node", "gpu-0", Verdict.UNHEALTHY, "xy" + "温" * 500))
    async with (
        running(plugin(root, Prepares(), source)) as served,
        watching(served.service_socket, "v1") as watch,
    ):
        message = said(await anext(watch))[0][3]
        assert message == "xy" + "温" * 339 + "..."
        assert len(message.encode()) <= 1024
