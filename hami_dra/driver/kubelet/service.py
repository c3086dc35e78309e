"""kubelet's calls to a driver: registration, prepare and unprepare, both versions of each.

Created by `server`. In: gRPC messages. Out: answers that always have an entry for every claim:
kubelet retries a claim that failed, and an answer that fails as a whole would delay every pod of
the call.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import grpc.aio

from hami_dra.driver.kubelet.proto import (
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    registration_pb2,
    registration_pb2_grpc,
)
from hami_dra.driver.kubelet.protocol import ClaimRef, Preparation, PreparedDevice

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")


class Registration(registration_pb2_grpc.RegistrationServicer):
    """The registration service: kubelet reads the driver's name and reports the result; again whenever it restarts."""

    def __init__(self, driver: str, endpoint: str, versions: Sequence[str], registered: asyncio.Event) -> None:
        self._info = registration_pb2.PluginInfo(
            type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=versions
        )
        self._registered = registered

    async def GetInfo(self, request: registration_pb2.InfoRequest, context: Context) -> registration_pb2.PluginInfo:  # noqa: N802, ARG002 (gRPC's)
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802 (gRPC's)
        self,
        request: registration_pb2.RegistrationStatus,
        context: Context,  # noqa: ARG002
    ) -> registration_pb2.RegistrationStatusResponse:
        if request.plugin_registered:
            self._registered.set()
        else:
            self._registered.clear()
            log.error("kubelet refuses driver %s: %s", self._info.name, request.error or "it does not say why")
        return registration_pb2.RegistrationStatusResponse()


class Calls:
    """The calls without their version."""

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation
        self._under_way = 0
        self._changed = asyncio.Condition()

    async def idle(self, most_seconds: float) -> None:
        """Return when no call is pending, or after that time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(most_seconds), self._changed:
                await self._changed.wait_for(lambda: not self._under_way)

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        async with self._counted():
            return await _answered("prepared", claims, self._preparation.prepare)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        async with self._counted():
            return await _answered("unprepared", claims, self._preparation.unprepare)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            async with self._changed:
                self._changed.notify_all()


async def _answered(
    done: str, claims: Sequence[ClaimRef], call: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, Answer]]]
) -> Mapping[str, Answer | str]:
    try:
        answers = await call(claims)
    except Exception:
        log.exception("%s: not %s", ", ".join(map(str, claims)), done)
        return dict.fromkeys(
            (claim.uid for claim in claims), f"not {done}: the driver had an internal error; see its log"
        )
    forgotten = f"not {done}: the driver did not say why (this is a bug of it)"
    return {claim.uid: answers.get(claim.uid, forgotten) for claim in claims}


DRA_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""Names sent to kubelet, which takes the first that it knows."""


def add_dra(server: grpc.aio.Server, calls: Calls) -> None:
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(_Dra(calls, dra_v1_pb2), server)
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(_Dra(calls, dra_v1beta1_pb2), server)


class _Dra:
    """One version of the service: `messages` is its module. v1beta1 lacks the share id and nothing else."""

    def __init__(self, calls: Calls, messages: Any) -> None:
        self._calls = calls
        self._messages = messages
        self._knows_shares = "share_id" in messages.Device.DESCRIPTOR.fields_by_name

    async def NodePrepareResources(self, request: Any, context: Context) -> Any:  # noqa: N802, ARG002 (gRPC's)
        answers = await self._calls.prepare(_claims(request.claims))
        made = self._messages.NodePrepareResourceResponse
        return self._messages.NodePrepareResourcesResponse(
            claims={
                uid: made(error=found) if isinstance(found, str) else made(devices=map(self._device, found))
                for uid, found in answers.items()
            }
        )

    async def NodeUnprepareResources(self, request: Any, context: Context) -> Any:  # noqa: N802, ARG002 (gRPC's)
        answers = await self._calls.unprepare(_claims(request.claims))
        made = self._messages.NodeUnprepareResourceResponse
        return self._messages.NodeUnprepareResourcesResponse(
            claims={uid: made(error=error) for uid, error in answers.items()}
        )

    def _device(self, device: PreparedDevice) -> Any:
        share = {"share_id": device.share_id} if device.share_id and self._knows_shares else {}
        return self._messages.Device(
            request_names=device.requests,
            pool_name=device.pool,
            device_name=device.device,
            cdi_device_ids=device.cdi_ids,
            **share,
        )


def _claims(claims: Iterable[Any]) -> tuple[ClaimRef, ...]:
    return tuple(ClaimRef(claim.namespace, claim.name, claim.uid) for claim in claims)
