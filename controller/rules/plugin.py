"""What a filter plugin is: asked about a pod, it says which nodes it refuses, or that it refuses
the pod as a whole.

`node_filters` runs the plugins in kube-scheduler's order. A `NodePlugin` judges a node by itself and
the pods on it (taints, node affinity, ports, resources): again where a node changed.
All others are a `FilterPlugin`: their verdict on a node depends on more than that node, so each
keeps a `PodFilter` per shape of pod.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
from msgspec import Struct

from controller.cluster.nodes.nodes import NodeColumns, Placed
from controller.reasons.catalogue import NUMBERS
from hami_dra.api.arrays import Bools, Codes, Ints, Positions
from hami_dra.api.core import Pod

Asked = TypeVar("Asked", bound=Hashable)


class PodRefusal(Struct, frozen=True):
    """Why a pod cannot run on any node, whatever room there is (kube-scheduler's PreFilter)."""

    code: str
    """A reason code of `catalogue.PLUGINS`: it decides which changes may help (queueing hints)."""
    sentence: str
    """Names the object: `PersistentVolumeClaim default/data does not exist`."""


class NodePlugin(ABC, Generic[Asked]):
    """`Asked`: all that it reads of a pod. Codes are numbers of `catalogue.CODES`, 0: not refused."""

    reasons: ClassVar[tuple[str, ...]]
    """Its reason codes. Their place in `catalogue.NUMBERS` is that of the plugin in kube-scheduler's order."""

    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes

    @abstractmethod
    def asked(self, pod: Pod) -> Asked | None:
        """Return None if the plugin refuses the pod no node."""

    @abstractmethod
    def codes(self, pod: Pod, asked: Asked, rows: Positions, own: Placed | None) -> Ints | Codes:
        """Shape (len(rows),). `own`: where the pod counts already; it does not count against itself."""

    def judge(self, pod: Pod, asked: Asked) -> Callable[[int], int]:
        """Return what gives the code of one row, for a pod that counts nowhere yet."""
        return self.codes(pod, asked, np.arange(self._nodes.size), None).item

    @abstractmethod
    def sentence(self, pod: Pod, row: int, own: Placed | None) -> str:
        """Return why the plugin refuses this node, with object and figure."""


class PodFilter(ABC):
    """The nodes that one plugin refuses to the pods of one shape.

    `refused` (bool, shape (nodes.size,)) is current after `refresh`, which increases `version` when
    it changes the column. Callers must not change it.
    """

    def __init__(self, code: str) -> None:
        self.code = code
        self.number = NUMBERS[code]
        self.version = 0
        self.refused: Bools = np.zeros(0, dtype=np.bool_)

    @abstractmethod
    def refresh(self) -> None:
        """Bring `refused` up to date."""

    @abstractmethod
    def sentence(self, pod: Pod, row: int) -> str:
        """Return why the plugin refuses this node, with object and figure. Called when it
        is read: it may take its time.
        """

    def holds_in_any_order(self, row: int, unbound: "tuple[Placed, ...]") -> bool:  # noqa: ARG002 (for subclasses)
        """Return whether the plugin admits the node regardless of which `unbound` pods
        kube-scheduler binds before this one. They count where a decision placed them.
        """
        return True


class RecomputedFilter(PodFilter):
    """A filter that computes its whole column again when something that it reads changed."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self._seen: object = None

    def refresh(self) -> None:
        versions = self._versions()
        if versions != self._seen:
            fresh = self._compute()
            if not np.array_equal(fresh, self.refused):
                self.refused = fresh
                self.version += 1
            self._seen = versions

    @abstractmethod
    def _versions(self) -> object:
        """Return a value that differs whenever the column may differ; cheap."""

    @abstractmethod
    def _compute(self) -> Bools:
        """Return the refused nodes, shape (nodes.size,), as a new array."""


class FilterPlugin(Protocol):
    code: str
    """Its place in `catalogue.NUMBERS` is the place of the plugin in kube-scheduler's order."""

    def filter_for(self, pod: Pod, own: Placed | None) -> PodFilter | PodRefusal | None:
        """Return the nodes that the plugin refuses to the pod; None if it refuses none, which must
        take next to no time.

        `own`: where the inventory counts this pod already; it does not count against itself.
        """
