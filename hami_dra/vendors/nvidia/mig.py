"""MIG: the instances that a GPU supports, and the places where each of them fits.

Called by `publish` and by the rules. In: GPU records. Out: profiles; shared counters as plain JSON.
Pure. NVML's own data comes first; the table serves records without it (simulated machines). Its
profiles and placements are those of NVIDIA's MIG user guide ("Supported MIG Profiles"), the memory
is the output of `nvidia-smi mig -lgip`. Profiles with other media engines (`1g.10gb+me`,
`1g.12gb-me`) are left out, as in HAMi's list: each takes the place of a plain one.

A GPU has memory slices with a position, and compute slices without. An instance takes neighbouring
memory slices from a start that the hardware allows, and some compute slices; two instances exclude
each other exactly if they need the same memory slice, or more compute slices than the GPU has. One
counter per memory slice expresses just that to the allocator.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hami_dra.api.hardware import Card, PartitionPlacement
from hami_dra.vendors.nvidia.records import GpuRecord, MigProfile

Json = dict[str, Any]

MIB: Final = 1 << 20
_PLAIN: Final = re.compile(r"[0-9]+g\.[0-9]+gb")
COMPUTE: Final = "compute-slices"
MEMORY: Final = "memory-slice-{}"


class Model(NamedTuple):
    """GPUs with the same partitions."""

    word: str
    """Part of the product name."""
    most: int
    """Maximum MiB of such a GPU: distinguishes the A100 of 40 GB from that of 80 GB."""
    profiles: tuple[MigProfile, ...]


class _Shape(NamedTuple):
    """Places of the instances of a profile; the number is NVML's."""

    number: int
    compute: int
    size: int
    """Memory slices."""
    starts: tuple[int, ...]


_EIGHTHS: Final = (
    _Shape(19, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    _Shape(15, 1, 2, (0, 2, 4, 6)),
    _Shape(14, 2, 2, (0, 2, 4)),
    _Shape(9, 3, 4, (0, 4)),
    _Shape(5, 4, 4, (0,)),
    _Shape(0, 7, 8, (0,)),
)
"""Of GPUs with seven compute and eight memory slices."""
_QUARTERS: Final = (_Shape(14, 1, 1, (0, 1, 2, 3)), _Shape(5, 2, 2, (0, 2)), _Shape(0, 4, 4, (0,)))


def _model(word: str, most: int, shapes: Sequence[_Shape], sizes: Mapping[int, tuple[str, int]]) -> Model:
    """Return a model. `sizes`: memory slices of a profile → how its size is written, and the MiB of an instance."""
    return Model(
        word,
        most,
        tuple(
            MigProfile(
                id=shape.number,
                name=f"{shape.compute}g.{sizes[shape.size][0]}",
                memory=sizes[shape.size][1] * MIB,
                slices=shape.compute,
                instances=len(shape.starts),
                placements=tuple(PartitionPlacement(start=start, size=shape.size) for start in shape.starts),
            )
            for shape in shapes
        ),
    )


MODELS: Final = (
    _model("A30", 24_576, _QUARTERS, {1: ("6gb", 5_952), 2: ("12gb", 11_968), 4: ("24gb", 24_000)}),
    _model("A100", 40_960, _EIGHTHS, {1: ("5gb", 4_864), 2: ("10gb", 9_984), 4: ("20gb", 20_096), 8: ("40gb", 40_192)}),
    _model(
        "A100", 81_920, _EIGHTHS, {1: ("10gb", 9_728), 2: ("20gb", 19_968), 4: ("40gb", 40_192), 8: ("80gb", 80_896)}
    ),
    _model(
        "H100", 81_920, _EIGHTHS, {1: ("10gb", 9_984), 2: ("20gb", 20_096), 4: ("40gb", 40_448), 8: ("80gb", 81_152)}
    ),
    _model(
        "H200",
        144_384,
        _EIGHTHS,
        {1: ("18gb", 16_384), 2: ("35gb", 33_280), 4: ("71gb", 71_424), 8: ("141gb", 143_360)},
    ),
    # without a public output of nvidia-smi: a little below the fractions of the whole GPU
    _model(
        "B200",
        184_320,
        _EIGHTHS,
        {1: ("23gb", 22_016), 2: ("45gb", 45_056), 4: ("90gb", 91_136), 8: ("180gb", 182_784)},
    ),
)


def known_profiles(card: Card) -> tuple[MigProfile, ...]:
    """Return the GPU's profiles, in MIG mode or not, smallest first; empty without MIG, or for an unknown one."""
    if isinstance(card, GpuRecord) and card.mig is not None and card.mig.profiles:
        plain = (profile for profile in card.mig.profiles if _PLAIN.fullmatch(profile.name))
        return tuple(sorted(plain, key=lambda profile: (profile.memory, profile.slices, profile.name)))
    words = card.product.replace("-", " ").split()
    fitting = (model for model in MODELS if model.word in words and card.memory <= model.most * MIB)
    return next((model.profiles for model in fitting), ())


def profiles(card: Card) -> tuple[MigProfile, ...]:
    """Return the profiles of a GPU in MIG mode; empty for every other card."""
    in_mig_mode = isinstance(card, GpuRecord) and card.mig is not None and card.mig.enabled
    return known_profiles(card) if in_mig_mode else ()


def placements(card: Card) -> Iterator[tuple[MigProfile, PartitionPlacement]]:
    """Yield every instance that a GPU in MIG mode may have, smallest profile first."""
    for profile in profiles(card):
        for placement in profile.placements:
            yield profile, placement


def compute_slices(card: Card) -> int:
    """Return the compute slices of the whole GPU in MIG mode."""
    return max(profile.slices for profile in profiles(card))


# --- counters -------------------------------------------------------------------------------------


def counter_set(card: Card) -> Json:
    """Return all slices of one GPU; the set is named like its device."""
    return {"name": set_name(card), "counters": _all(card)}


def consumed_by_card(card: Card) -> list[Json]:
    """Return all counters of the GPU: one that is used as a whole, shared or not, is not partitioned."""
    return [{"counterSet": set_name(card), "counters": _all(card)}]


def consumed_by_instance(card: Card, profile: MigProfile, placement: PartitionPlacement) -> list[Json]:
    memory_slices = range(placement.start, placement.start + placement.size)
    return [{"counterSet": set_name(card), "counters": _counters(profile.slices, memory_slices)}]


def set_name(card: Card) -> str:
    return f"gpu-{card.name_number}"


def _all(card: Card) -> Json:
    end = max(placement.start + placement.size for _, placement in placements(card))
    return _counters(compute_slices(card), range(end))


def _counters(compute: int, memory_slices: range) -> Json:
    return {COMPUTE: {"value": str(compute)}} | {MEMORY.format(place): {"value": "1"} for place in memory_slices}
