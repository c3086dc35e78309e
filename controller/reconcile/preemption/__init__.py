"""Room for units that find none: who is evicted, and the places that are held meanwhile, or reserved.

| module | task |
|---|---|
| `preemptor` | plans for units without room, and resumes those that have a place |
| `reservations` | places for units that have waited for long |
| `holds` | the places, and what concerns them |
| `evictor` | nominations and evictions, written in the background |
| `deletion_costs` | which pods of a ReplicaSet go first when it is scaled in |
| `left_claims` | claims that are about to be free |
| `notes` | the events |

Exists in exclusive mode, unless `--preemption` is off and `--save-after` 0. A new leader finds no hold: it plans again, and a plan needs no
victims where enough pods terminate already. The nomination leads it to the same node.
"""

from controller.reconcile.preemption.deletion_costs import DeletionCosts
from controller.reconcile.preemption.evictor import Evictor
from controller.reconcile.preemption.holds import Hold, Holds
from controller.reconcile.preemption.preemptor import Preemptor
from controller.reconcile.preemption.waits import Waits
