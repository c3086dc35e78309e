"""The life of a preemption: who is evicted for a unit, and the place that is held for it meanwhile.

| module | task |
|---|---|
| `preemptor` | plans for units without room, and resumes those that have a place |
| `holds` | the places, and what concerns them |
| `evictor` | nominations and evictions, written in the background |
| `left_claims` | claims that are about to be free |
| `notes` | the events |

Exists while `--preemption=devices`. A new leader finds no hold: it plans again, and a plan needs no
victims where enough pods terminate already. The nomination leads it to the same node.
"""

from controller.reconcile.preemption.evictor import Evictor
from controller.reconcile.preemption.holds import Hold, Holds
from controller.reconcile.preemption.preemptor import Preemptor, Waits
