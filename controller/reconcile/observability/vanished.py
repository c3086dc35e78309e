"""Reports deleted claims whose devices pods still hold: one event on each such pod.

Subscribed by `term` while this process leads. `controller.inventory.vanished` decides
what counts and until when; this module only checks for changes.
"""

from dataclasses import dataclass, field

from controller.inventory import VanishedClaim
from controller.reconcile.runtime import Context, messages
from hami_dra.api.kinds import POD
from hami_dra.api.printable import some


@dataclass(eq=False)
class VanishedWatch:
    context: Context
    _version: int = -1
    _reported: set[tuple[str, str]] = field(default_factory=set)
    """UIDs of claim and pod."""

    def report_all(self, *_: object) -> None:
        """Report changes; called at the start of a term and after each change of claims, pods and slices."""
        if self._version == self.context.inventory.vanished.version:
            return
        self._version = self.context.inventory.vanished.version
        current: set[tuple[str, str]] = set()
        for gone in self.context.inventory.vanished.all():
            for holder in gone.holders:
                current.add((gone.uid, holder.uid))
                if (gone.uid, holder.uid) not in self._reported:
                    self._report(gone, holder.uid, holder.key)
        self._reported = current

    def _report(self, gone: VanishedClaim, uid: str, key: str) -> None:
        pod = self.context.informers.pod(key)
        if pod is None or pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None:
            return
        note = (
            f"ResourceClaim {gone.key} is gone, and this pod still holds its devices ({some(gone.devices)}): they count, for quotas as "
            "well, until the pod has ended; delete the pod to free them"
        )
        self.context.events.report(POD, pod, messages.warning(messages.CLAIM_VANISHED, note), "Watch")
