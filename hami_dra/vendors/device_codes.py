"""The reason codes of devices, HAMi's (pkg/device/common/common.go): each with its words, in the order of checks. Pure.

To add one, declare it here, at its place in the order, and use it in its rule: numbers, queueing
hints, explanations and the dashboard follow. `controller.reasons.catalogue` has those of nodes.
"""

from typing import Final

from msgspec import Struct


class CodeWords(Struct, frozen=True):
    """What a reason code says."""

    words: str
    """English; `{}` stands for the devices or nodes, `{are}` for their verb, `{state}` for `state`."""
    chinese: str
    """Of one device or node."""
    fix: str = ""
    """What to do, where the words do not suggest it; `{}` stands for a node, `{one}` for one of several."""
    state: str = ""
    """The adjective, where the words say no more: `cordoned`."""
    of_node: bool = False
    """Whether nodes are refused for it; else devices."""

    @property
    def english(self) -> str:
        """The words about one device or node."""
        return self.about("the node" if self.of_node else "the device", 1)

    def about(self, subject: str, number: int) -> str:
        """Return the words about `number` of them: `all slots of 2 devices are taken`."""
        return self.words.format(subject, are="is" if number == 1 else "are", state=self.state)


IN_STATE: Final = "{} {are} {state}"
"""The words where the adjective says all."""
WORDS: Final[dict[str, CodeWords]] = {}
"""By code."""
_ORDER: Final = [""]


def _code(code: str, words: str, chinese: str, *, fix: str = "", state: str = "", of_node: bool = False) -> str:
    """Add a code to the words and to the order, and return it."""
    WORDS[code] = CodeWords(words, chinese, fix, state, of_node)
    _ORDER.append(code)
    return code


CARD_NOT_HEALTH: Final = _code("CardNotHealth", IN_STATE, "设备不健康", state="not healthy")
CARD_CORDONED: Final = _code(
    "CardCordoned",
    IN_STATE,
    "设备已停用",
    state="out of service",
    fix="Remove the Node's annotation hami.io/device-cordon, or wait",
)
CARD_TYPE_MISMATCH: Final = _code("CardTypeMismatch", "not the requested type of device", "不是所要求的设备型号")
CARD_APP_CLASS_MISMATCH: Final = _code(
    "CardAppClassMismatch", "the tenants of {} are of another class (online or offline)", "设备上运行着其他类别的任务"
)
CARD_QOS_MISMATCH: Final = _code(
    "CardQosPolicyMismatch", "the tenants of {} have another quality of service", "设备已用于其他 QoS"
)
CARD_UUID_MISMATCH: Final = _code("CardUuidMismatch", "not a device requested by its UUID", "不是按 UUID 要求的设备")
MODE_NOT_FIT: Final = _code(
    "ModeNotFit", "{} {are} in another mode, or cut into slices of another size", "设备处于其他模式，或已切成其他大小"
)
CARD_TIME_SLICING_EXHAUSTED: Final = _code("CardTimeSlicingExhausted", "all slots of {} are taken", "设备的份数已用完")
EXCLUSIVE_CONFLICT: Final = _code(
    "ExclusiveDeviceAllocateConflict",
    "needs a device of its own, and this one is in use",
    "要求独占，但设备上已有占用者",
)
RESOURCE_QUOTA_NOT_FIT: Final = _code(
    "ResourceQuotaNotFit", "the quota of the namespace leaves no room", "命名空间的配额不足"
)
CARD_INSUFFICIENT_MEMORY: Final = _code("CardInsufficientMemory", "not enough memory left on {}", "设备的剩余显存不足")
CARD_INSUFFICIENT_CORE: Final = _code("CardInsufficientCore", "not enough cores left on {}", "设备的剩余算力不足")
_ORDER.append(EXCLUSIVE_CONFLICT)
CARD_COMPUTE_UNITS_EXHAUSTED: Final = _code(
    "CardComputeUnitsExhausted", "all cores of {} are promised to others", "设备的算力已用完"
)
CARD_MIG_INFEASIBLE: Final = _code(
    "CardMigTopologyInfeasible", "what is cut from {} leaves no room for it", "该设备上已切不出这种规格"
)
"""A partition does not fit next to the card's other partitions."""
CUSTOM_FILTER_RULE: Final = _code(
    "CardNotFoundCustomFilterRule",
    "the device does not have a capacity that the request names",
    "设备没有请求所指名的容量",
)
NUMA_NOT_FIT: Final = _code(
    "NumaNotFit",
    "enough devices, but no set of them that the vendor's rules allow",
    "设备够用，但没有符合厂商规则的组合",
    of_node=True,
)
ALLOCATED_CARDS_INSUFFICIENT: Final = _code(
    "AllocatedCardsInsufficientRequest", "not enough devices fit together", "能一起使用的设备不足"
)

# --- only of the devices of a node together --------------------------------------------------

NODE_INSUFFICIENT_DEVICE: Final = _code(
    "NodeInsufficientDevice", "fewer devices of the class than requested", "该类设备少于请求的数量", of_node=True
)
TOPOLOGY_NOT_FIT: Final = _code(
    "TopologyNotFit",
    "enough devices, but no set of them joined by the fast interconnect",
    "设备够用，但没有由高速互联相连的组合",
    of_node=True,
)
NODE_HANDLES_EXHAUSTED: Final = _code(
    "NodeHandlesExhausted",
    "the driver has too few handles left for this many slices",
    "驱动剩余的句柄不足以提供这么多切片",
    of_node=True,
)
"""Our own: HAMi does not check it."""

CODES: Final = tuple(_ORDER)
"""Index = number of the code, so that columns of them can be stored and counted. The order is
HAMi's order of checks: the first that fails is the card's reason. EXCLUSIVE_CONFLICT is there twice:
a card in use is refused by the policy `mutex` before amounts are compared, and by a request for all
of its cores after them.
"""
NUMBER: Final = {code: number for number, code in enumerate(CODES)}
"""Number of each code; of EXCLUSIVE_CONFLICT the later one."""
MUTEX_CONFLICT: Final = CODES.index(EXCLUSIVE_CONFLICT)
"""The earlier number of EXCLUSIVE_CONFLICT."""
