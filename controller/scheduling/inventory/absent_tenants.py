"""Tenants that are taken away on trial: the inventory as it would be without some pods.

Used by trials (`gangs.trial_assumptions`): preemption asks what fits once its victims are gone,
moves where a pod would fit if it were not where it is. Costs the devices of these pods, whatever
the size of the cluster. Pure.
"""

from collections.abc import Callable, Collection

from controller.scheduling.inventory.ledger import Ledger
from controller.scheduling.inventory.model import DeviceId
from controller.scheduling.inventory.quotas import QuotaBook
from controller.scheduling.node_filter.pods import PodBook


class AbsentTenants:
    """Pods and claims that are there and do not count.

    For what is taken away and brought back in one synchronous step: no event may come between.
    `recount`: updates the columns of devices whose usage changed.
    """

    def __init__(
        self, ledger: Ledger, quotas: QuotaBook, pods: PodBook, recount: Callable[[Collection[DeviceId]], None]
    ) -> None:
        self._ledger = ledger
        self._quotas = quotas
        self._pods = pods
        self._recount = recount

    def take_away(self, pod_uid: str, claim_uids: Collection[str]) -> None:
        """Stop counting a bound pod and what was observed of these claims.

        `claim_uids`: those that would be free; a claim that other pods use, too, keeps its devices.
        """
        self._pods.take_away(pod_uid)
        self._set(claim_uids, absent=True)

    def bring_back(self, pod_uid: str, claim_uids: Collection[str]) -> None:
        """End `take_away`, with the same arguments, after what was assumed meanwhile is forgotten."""
        self._set(claim_uids, absent=False)
        self._pods.bring_back(pod_uid)

    def _set(self, claim_uids: Collection[str], *, absent: bool) -> None:
        for uid in claim_uids:
            self._recount(self._ledger.set_absent(uid, absent=absent))
            self._quotas.recount(uid)
