"""Handle kubelet's calls: fetch claims and pods, queue the work, and answer every call in time.

Created by the node driver, called by its gRPC services. In: references to claims. Out: for each
claim the devices, or the sentence with the reason of the failure. Nothing raises. Everything that
touches files and hardware is done by `transaction`, one batch at a time in a thread: calls that
arrive meanwhile form the next batch, so a hundred calls at once cost a few writes of the checkpoint
and not a hundred.

kubelet gives up after 45 s and calls again; an answer that names the cause of the delay is better,
so calls return before that. Work begun for them continues, and the next call finds its result.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

from hami_dra.api.kinds import POD, RESOURCE_CLAIM, Kind
from hami_dra.api.resource import ResourceClaim
from hami_dra.driver.kubelet.protocol import ClaimRef, PreparedDevice
from hami_dra.driver.prepare import cdi
from hami_dra.driver.prepare.batching import Job, Outcome, Prepare, Unprepare
from hami_dra.driver.prepare.errors import PrepareError, Refused
from hami_dra.driver.prepare.pods import Pod, read_pod
from hami_dra.driver.prepare.records import Record
from hami_dra.driver.prepare.transaction import UNEXPECTED, PrepareTransactions
from hami_dra.kube.protocol import Cluster, ClusterError, Forbidden, NotFound

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_SECONDS: Final = 40.0
"""Of kubelet's 45 (draplugin: the timeout of NodePrepareResources)."""
_AT_ONCE: Final = 16
"""Concurrent requests to the API server."""
_POD_GROUPS: Final = ("podgroups", "scheduling.k8s.io")
"""Resource and API group of the consumer of a claim that is reserved for all pods of a PodGroup at once."""
_WHOLE_POD: Final = Kind(POD.name, POD.group, POD.version, POD.plural, POD.namespaced, Pod)
"""The pod with its containers' environment, which `POD` leaves out."""
_LAST_SECONDS: Final = 10.0
"""Seconds that the current batch may still take when the driver ends."""

Reporter = Callable[[Mapping[str, ResourceClaim], Mapping[str, Record | str]], None]


@dataclass(eq=False)
class NodePreparation:
    """Implements `hami_dra.driver.kubelet.protocol.Preparation` for one driver on one node.

    Call `start` first, and keep `run` running until cancelled. `report` gets every outcome, with
    the claims as they were read (`ClaimStatusWriter.add`), `forget` the uids that are not prepared
    any more (`ClaimStatusWriter.forget`).
    """

    cluster: Cluster
    work: PrepareTransactions
    _: KW_ONLY
    node: str
    report: Reporter | None = None
    forget: Callable[[Iterable[str]], None] | None = None
    most_seconds: float = MOST_SECONDS
    on_change: Callable[[], None] = lambda: None
    """Called after each batch, when `records` may have changed."""
    _asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    _waiting: list[tuple[Job, asyncio.Future[dict[str, Outcome]]]] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> list[str]:
        """Finish or take back the unfinished work of an earlier instance. Returns sentences about failures.

        Raises PrepareError if the prepared claims cannot even be determined; calls are answered
        with the same error then.
        """
        return await asyncio.to_thread(self.work.start)

    @property
    def records(self) -> Mapping[str, Record]:
        """Return records of claims that are prepared or about to be, by claim uid."""
        return self.work.written

    async def refresh(self) -> bool:
        """Read the checkpoint again: another instance may have written it. Returns whether `records` are reliable."""
        await self._queued(Unprepare(()))
        return self.work.is_known

    async def latest(self) -> Mapping[str, Record] | None:
        """Return `records`, read again; None while they cannot be relied on."""
        return self.records if await self.refresh() else None

    def follow(self) -> None:
        """Soon, describe prepared claims again where the devices are others now. Returns at once."""
        self._waiting.append((Unprepare(()), asyncio.get_running_loop().create_future()))
        self._woken.set()

    async def run(self) -> None:
        """Process batches. On cancellation it finishes the current batch, unless that hangs."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            batch, self._waiting = self._waiting, []
            # the caller may be gone by now; a job is done nevertheless, for kubelet relies on it
            work = asyncio.get_running_loop().run_in_executor(None, self.work.run, [job for job, _ in batch])
            try:
                outcomes = await asyncio.shield(work)
            except asyncio.CancelledError:
                with suppress(Exception):
                    async with asyncio.timeout(_LAST_SECONDS):
                        _settle(batch, await work)
                raise
            except Exception:
                log.exception("a batch of %d calls", len(batch))
                outcomes = [dict.fromkeys(job.uids, UNEXPECTED) for job, _ in batch]
            _settle(batch, outcomes)
            self.on_change()

    # --- kubelet's calls ---

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        job = Prepare({})
        outcomes: dict[str, Outcome] = {}
        try:
            async with asyncio.timeout(self.most_seconds):
                outcomes, job = await self._read(claims)
                if not outcomes:
                    outcomes = await self._queued(job)
        except TimeoutError:
            late = f"not done after {self.most_seconds:g} s: the API server, the disk or the hardware is slow; kubelet will ask again"
            outcomes = {ref.uid: f"ResourceClaim {ref}: {late}" for ref in claims}
        except PrepareError as error:
            outcomes = dict.fromkeys((ref.uid for ref in claims), str(error))
        for ref in claims:
            outcome = outcomes[ref.uid]
            if isinstance(outcome, str):
                log.warning("ResourceClaim %s is not prepared: %s", ref, outcome)
        if self.report is not None:
            self.report(job.claims, outcomes)
        return {uid: found if isinstance(found, str) else found.answers for uid, found in outcomes.items()}

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        outcomes: dict[str, Outcome] = {}
        try:
            async with asyncio.timeout(self.most_seconds):
                outcomes = await self._queued(Unprepare(tuple(ref.uid for ref in claims)))
        except TimeoutError:
            late = f"not taken back after {self.most_seconds:g} s: the disk or the hardware is slow; kubelet will ask again"
            outcomes = {ref.uid: f"ResourceClaim {ref}: {late}" for ref in claims}
        answers = {uid: found if isinstance(found, str) else "" for uid, found in outcomes.items()}
        if self.forget is not None:
            self.forget([uid for uid, why in answers.items() if not why])
        for ref in claims:
            if answers[ref.uid]:
                log.warning("ResourceClaim %s is not unprepared: %s", ref, answers[ref.uid])
        return answers

    async def _queued(self, job: Job) -> dict[str, Outcome]:
        future: asyncio.Future[dict[str, Outcome]] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, future))
        self._woken.set()
        return await future

    # --- reading ---

    async def _read(self, refs: Sequence[ClaimRef]) -> tuple[dict[str, Outcome], Prepare]:
        """Return errors by uid, and the claims that were read with the pods that they are reserved for.

        One claim that cannot be read fails the call, which kubelet makes for one pod: the view of
        the others would be fixed without it.
        """
        answers = await asyncio.gather(*(self._claim(ref) for ref in refs))
        wrong: dict[str, Outcome] = {
            ref.uid: why for ref, why in zip(refs, answers, strict=True) if isinstance(why, str)
        }
        if wrong:
            why = next(iter(wrong.values()))
            return {ref.uid: f"with another claim of the pod: {why}" for ref in refs} | wrong, Prepare({})
        claims = {ref.uid: claim for ref, claim in zip(refs, answers, strict=True) if not isinstance(claim, str)}
        wanted = {
            (claim.metadata.namespace, consumer.name): consumer.uid
            for claim in claims.values()
            for consumer in claim.status.reserved_for
            if (consumer.resource, consumer.api_group) == (POD.plural, "")
        }
        found = await asyncio.gather(*(self._pod(*key, uid) for key, uid in sorted(wanted.items())))
        pods = {pod.metadata.uid: pod for pod in found if pod is not None}
        of_groups, unread = await self._pods_of_groups(claims)
        pods |= {pod.metadata.uid: pod for pod in of_groups}
        return wrong, Prepare(claims, tuple(pods.values()), unread)

    async def _pods_of_groups(self, claims: Mapping[str, ResourceClaim]) -> tuple[list[Pod], dict[str, str]]:
        """Return the pods on this node of the PodGroups that claims are reserved for, and by uid of
        a claim why they are unknown.

        A PodGroup does not name its pods, and its pods do not know its uid, so they are found by
        its name, as kubelet does (k8s.io/dynamic-resource-allocation v0.37,
        resourceclaim.IsReservedForPod). Raises Refused.
        """
        groups = {
            (claim.metadata.namespace, consumer.name, uid)
            for uid, claim in claims.items()
            for consumer in claim.status.reserved_for
            if (consumer.resource, consumer.api_group) == _POD_GROUPS
        }
        found: list[Pod] = []
        unread: dict[str, str] = {}
        for namespace in sorted({namespace for namespace, _, _ in groups}):
            wanted = sorted((uid, name) for place, name, uid in groups if place == namespace)
            try:
                pods = await self._pods_here(namespace)
            except Forbidden as error:
                unread |= {uid: f"PodGroup {namespace}/{name} ({error})" for uid, name in wanted}
                continue
            names = {name for _, name in wanted}
            found += [pod for pod in pods if pod.spec.scheduling_group.pod_group_name in names and not pod.is_over]
        return found, unread

    async def _pods_here(self, namespace: str) -> tuple[Pod, ...]:
        """Return the pods of the namespace on this node. Raises Forbidden, Refused."""
        here = f"spec.nodeName={self.node}"
        try:
            listing = await self._asked(self.cluster.list(_WHOLE_POD, namespace=namespace, field_selector=here))
        except Forbidden:
            raise
        except ClusterError as error:
            raise Refused(f"the pods of namespace {namespace} on this node cannot be read: {error}") from error
        for broken in listing.broken:
            raise Refused(
                f"Pod {namespace}/{broken.object.metadata.name}: {broken.problem}: the driver does not understand this pod"
            )
        return listing.items

    async def _claim(self, ref: ClaimRef) -> ResourceClaim | str:
        what = f"ResourceClaim {ref}"
        if not cdi.is_uid(ref.uid):
            return f"{what}: uid {ref.uid!r} is not a uid: this is not a call of kubelet's"
        try:
            return await self._asked(self.cluster.get(RESOURCE_CLAIM, ref.name, ref.namespace))
        except NotFound:
            return f"{what} does not exist any more: delete the pod, so that it is started with a new claim"
        except ClusterError as error:
            return f"{what} cannot be read: {error}{_advice(error)}"

    async def _pod(self, namespace: str, name: str, uid: str) -> Pod | None:
        """Return a pod; None if it is deleted or has ended, so that none of its containers runs.

        Raises Refused: the views of a pod's containers are unknown without it.
        """
        try:
            pod = read_pod(await self._asked(self.cluster.get_raw(POD, name, namespace)))
        except NotFound:
            return None
        except ClusterError as error:
            raise Refused(f"Pod {namespace}/{name} cannot be read: {error}{_advice(error)}") from error
        return pod if pod.metadata.uid == uid and not pod.is_over else None

    async def _asked(self, call: Awaitable[T]) -> T:
        async with self._asking:
            return await call


def _advice(error: ClusterError) -> str:
    return ": give the driver's ServiceAccount permission to get it" if isinstance(error, Forbidden) else ""


def _settle(
    batch: Sequence[tuple[Job, asyncio.Future[dict[str, Outcome]]]], outcomes: Sequence[dict[str, Outcome]]
) -> None:
    for (_, future), outcome in zip(batch, outcomes, strict=True):
        if not future.done():
            future.set_result(outcome)
