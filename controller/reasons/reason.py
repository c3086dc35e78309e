"""The one reason why a pod gets no devices, and the one place where it becomes a sentence.

Made by `decide.why_refused`; shown by events, `hami-dra explain`, `simulate` and `whatif`, the
dashboard and their JSON. Pure.

A sentence says what fails with the figure asked for, the best figure there is, whether that can
change without anyone doing something, and what to do:

>>> reason = Reason("memory", "needs 80000 MiB on one device", "the largest has 23028 MiB (NVIDIA A10G)", never=True)
>>> reason.sentence
'no node fits: needs 80000 MiB on one device; the largest has 23028 MiB (NVIDIA A10G), so it never will'
>>> with_command(reason.sentence, "c03/m03", {"CardInsufficientMemory": 2})
'no node fits: needs 80000 MiB on one device; the largest has 23028 MiB (NVIDIA A10G), so it never will. \
Run: hami-dra explain m03 -n c03 [2 nodes CardInsufficientMemory]'
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api.printable import counted, listed

MOST: Final = 1_024
"""Characters of a whole sentence: a note of events.k8s.io/v1 has no more."""
_CODES_NAMED: Final = 4
_INVALID: Final = frozenset({"selector", "annotation", "capacity"})
"""Kinds of reasons to be corrected in the pod and its claims, if they are for ever."""


class Reason(Struct, frozen=True):
    """Why no node fits. Texts are for people; programs read `kind`, `never` and the codes.

    It is part of JSON outputs: fields may be added, never removed.
    """

    kind: str
    """What is lacking: `memory`, `cores`, `slots`, `devices` (their number on a node), `whole
    devices`, `class`, `selector`, `annotation`, `capacity`, `health`, `set`, `requests`, `label`,
    `taint`, `resource`, `node`, `quota`, `volume`, `pool`, `search`, `gang`.
    """
    asked: str
    """What fails, with the figure asked for: `needs 80000 MiB on one device`."""
    best: str = ""
    """The best there is: `the largest has 23028 MiB (NVIDIA A10G)`."""
    never: bool = False
    """It stays so until someone changes the pod, the nodes or the devices of the cluster."""
    request: str = ""
    """The request of the pod, where it has several: `request metax-0`."""
    fix: str = ""
    """What to do, where that is more than asking for less, waiting or adding nodes."""
    code: str = ""
    """The reason code that it stands for; empty where there is none."""

    def also(self, *clauses: str, never: bool = True, fix: str = "") -> "Reason":
        """Return the reason with what else is true after the best figure. `never`: that lasts, too;
        `fix`: what to do about all of it, where that is something else.
        """
        best = "; ".join(filter(None, (self.best, *clauses)))
        return replace(self, best=best, never=self.never and never, fix=fix or self.fix)

    @property
    def is_invalid(self) -> bool:
        """What the pod asks for matches nothing, in contrast to too much of it."""
        return self.never and self.kind in _INVALID

    @property
    def sentence(self) -> str:
        """The reason in one sentence, without a full stop."""
        subject = f"{self.request}: " if self.request else ""
        return f"no node fits{'' if self.never else ' now'}: {subject}{self.statement}"

    @property
    def statement(self) -> str:
        """The sentence without what it is about: of a gang, which names its members itself.

        >>> Reason("gang", "0 of 3 members fit at once", "all devices are enough for 2", never=True).statement
        '0 of 3 members fit at once; all devices are enough for 2, so it never will'
        """
        text = f"{self.asked}; {self.best}" if self.best else self.asked
        if self.fix:
            return f"{text}. {self.fix}"
        return f"{text}, so it never will" if self.never else text


def with_command(sentence: str, pod_key: str, node_counts: Mapping[str, int]) -> str:
    """Return the sentence with the next command, and with the codes in brackets, most nodes first,
    for people who search for them. The sentence is cut where all of it would be too long.
    """
    namespace, _, name = pod_key.partition("/")
    end = f". Run: hami-dra explain {name} -n {namespace}{_bracket(node_counts)}"
    if len(sentence) + len(end) > MOST:
        sentence = sentence[: MOST - len(end) - 3] + "..."
    return sentence + end


def _bracket(node_counts: Mapping[str, int]) -> str:
    codes = sorted(node_counts, key=lambda code: (-node_counts[code], code))
    named = listed([f"{counted(node_counts[code], 'node')} {code}" for code in codes], _CODES_NAMED)
    return f" [{named}]" if named else ""
