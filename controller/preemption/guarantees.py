"""What namespaces are owed by their ResourceQuotas (`hami.io/quota: guarantee`), in the plan for one unit. Pure.

| plan | must leave every other namespace its guarantee | may evict pods of the same or a higher priority |
|---|---|---|
| by priority | yes | no |
| by reclaim | yes | of other namespaces, if the own one has no more than its guarantee with the unit |

So a plan by reclaim brings one namespace closer to its guarantee and takes none away from its own: the
sum over namespaces of min(use, guarantee) grows. It falls only where pods end, and where a namespace
preempts its own larger pods by priority. By resource of the quotas (`nvidia.com/gpumem`), in grains. A
guarantee of 4, of which 5 are used and 2 terminate, spares none.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from controller.decide.answers import Decision
from controller.decide.scheduling_request import SchedulingRequest
from controller.inventory.inventory import Inventory
from controller.inventory.quota_headroom import QuotaLine
from controller.inventory.quota_limits import Limit
from controller.inventory.quotas import Charge
from controller.preemption.tenants import Block, Tenants
from hami_dra.api.core import Pod
from hami_dra.api.podclaims import claim_keys
from hami_dra.vendors.quotas import PREFIX
from hami_dra.vendors.registry import QUOTA_NAMES

Placed = Sequence[tuple[SchedulingRequest, Decision]]


class Guarantees:
    """`taken`: what the namespace uses, with the places that are held for its units; None: as the inventory says now.
    `promised`: UIDs of the claims of places that are held: other namespaces cannot count on them yet.
    """

    def __init__(
        self, inventory: Inventory, tenants: Tenants, namespace: str, *, taken: Charge | None, promised: Collection[str]
    ) -> None:
        self._inventory = inventory
        self._tenants = tenants
        self._namespace = namespace
        self._promised = promised
        self._owed = inventory.quotas.owed.get(namespace, {})
        self._taken: Charge = dict(inventory.quotas.used(namespace)) if taken is None else taken
        self._charges: dict[str, Charge] = {}
        """By UID of the claim, as they are read."""

    @cached_property
    def _spare(self) -> Mapping[str, Charge]:
        """Namespace → what it has beyond its guarantee. First read where other plans' victims are gone."""
        quotas = self._inventory.quotas
        if not quotas.owed:
            return {}
        with self._inventory.trial() as trial:
            # also what terminates and is not waited for any more
            trial.remove_all((), {*self._promised, *self._tenants.freed_by(self._tenants.releasing(-math.inf))})
            return {
                other: {resource: max(quotas.used(other).get(resource, 0) - most, 0) for resource, most in owed.items()}
                for other, owed in quotas.owed.items()
                if other != self._namespace
            }

    @property
    def protect(self) -> bool:
        """Whether another namespace is owed anything."""
        return bool(self._spare)

    @property
    def lacks(self) -> bool:
        """Whether the own namespace has less than it is owed."""
        return any(self._taken.get(resource, 0) < amount for resource, amount in self._owed.items())

    def most(self, blocks: Iterable[Block]) -> list[Block]:
        """Return as many of the blocks, in this order, as leave every other namespace its guarantee."""
        if not self.protect:
            return [*blocks]
        spare: dict[str, Charge] = {}
        """Of the namespaces of these blocks: there may be thousands of others."""
        counted: set[str] = set()
        kept = []
        for block in blocks:
            namespace = block.pods[0].metadata.namespace
            left = spare.get(namespace) or self._spare.get(namespace, {})
            charge = self._charge(set(block.claims) - counted) if left else {}
            if all(amount <= left.get(resource, amount) for resource, amount in charge.items()):
                spare[namespace] = {resource: amount - charge.get(resource, 0) for resource, amount in left.items()}
                counted.update(block.claims)
                kept.append(block)
        return kept

    def keeps(self, pod: Pod) -> bool:
        """Return whether the pod has more of something than its namespace, another one, can spare."""
        spare = self._spare.get(pod.metadata.namespace)
        claims = map(self._tenants.claim, claim_keys(pod)) if spare else ()
        return any(
            amount > spare.get(resource, amount)
            for claim in claims
            if claim is not None and spare
            for resource, amount in self._of(claim.metadata.uid).items()
        )

    def gives(self, block: Block) -> bool:
        """Return whether the block has anything of what the own namespace is owed."""
        return not self._owed.keys().isdisjoint(self._charge(block.claims))

    def covers(self, placed: Placed) -> bool:
        """Return whether what the unit takes there is owed to it, and something is."""
        asked = self._asked(placed)
        return bool(asked) and self.allows(asked)

    def allows(self, asked: Charge) -> bool:
        """Return whether the own namespace has no more than it is owed with that."""
        return all(
            self._taken.get(resource, 0) + amount <= self._owed.get(resource, math.inf)
            for resource, amount in asked.items()
        )

    def lines(self, placed: Placed, victims: Iterable[Pod]) -> tuple[QuotaLine, ...]:
        """Return what the own namespace has of what the unit takes, and what those of the victims have that
        are owed some of it.
        """
        quotas = self._inventory.quotas
        others = dict.fromkeys(pod.metadata.namespace for pod in victims if pod.metadata.namespace != self._namespace)
        used = {self._namespace: self._taken} | {each: quotas.used(each) for each in others}
        return tuple(
            QuotaLine.of(
                namespace, Limit("", QUOTA_NAMES[PREFIX + resource], owed[resource]), has.get(resource, 0), "guarantee"
            )
            for namespace, has in used.items()
            for resource in self._asked(placed)
            if resource in (owed := quotas.owed.get(namespace, {}))
        )

    def _asked(self, placed: Placed) -> Charge:
        """Return what the unit takes of what its namespace is owed."""
        holdings = [each for _, decision in placed for entry in decision.allocations for each in entry.holdings]
        charge = self._inventory.quotas.charge(holdings)
        return {resource: amount for resource, amount in charge.items() if resource in self._owed}

    def _charge(self, claims: Iterable[str]) -> Charge:
        total = Counter[str]()
        for uid in claims:
            total.update(self._of(uid))
        return total

    def _of(self, claim: str) -> Charge:
        if claim not in self._charges:
            self._charges[claim] = self._inventory.quotas.charge_of_claim(claim)
        return self._charges[claim]
