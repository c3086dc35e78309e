"""What each namespace holds, added up card by card. Pure."""

from collections.abc import Iterable

from msgspec import Struct, field

from controller.views.overview.card_table import driver_rank
from controller.views.overview.model import Card, NamespaceView, Tenant, pods_of


class _Usage(Struct):
    """What one namespace holds of one driver's cards."""

    pods: set[str] = field(default_factory=set)
    claims: set[str] = field(default_factory=set)
    cards: set[str] = field(default_factory=set)
    whole_cards: int = 0
    memory: int = 0
    cores: int = 0
    shares: int = 0

    def add(self, card: Card, tenant: Tenant) -> None:
        self.pods |= pods_of([tenant])
        self.claims.add(tenant.claim)
        self.cards.add(card.id)
        self.whole_cards += tenant.whole and tenant.device == card.device
        self.memory += tenant.memory
        self.cores += tenant.cores
        self.shares += tenant.shares


class NamespaceUsage:
    """The sums of the cards that were added, each once. Admin access does not count."""

    def __init__(self) -> None:
        self._usage: dict[tuple[str, str, str], _Usage] = {}
        """By namespace, vendor, driver."""

    def add(self, cards: Iterable[Card]) -> None:
        for card in cards:
            for tenant in card.tenants:
                if not tenant.admin:
                    key = (tenant.namespace, card.vendor, card.driver)
                    self._usage.setdefault(key, _Usage()).add(card, tenant)

    def views(self) -> tuple[NamespaceView, ...]:
        """Return the namespaces' holdings by name, then vendor."""
        return tuple(
            NamespaceView(
                namespace=namespace,
                vendor=vendor,
                pods=len(usage.pods),
                claims=len(usage.claims),
                cards=len(usage.cards),
                whole_cards=usage.whole_cards,
                memory=usage.memory,
                cores=usage.cores,
                shares=usage.shares,
            )
            for (namespace, vendor, _), usage in sorted(
                self._usage.items(), key=lambda item: (item[0][0], driver_rank(item[0][2]))
            )
        )


def namespaces(cards: Iterable[Card]) -> tuple[NamespaceView, ...]:
    """Return what namespaces hold of these cards, by name, then vendor."""
    usage = NamespaceUsage()
    usage.add(cards)
    return usage.views()
