"""From an allocated claim to the devices of its containers, and back: the node's half of DRA behind kubelet's calls.

`assembly` joins the parts that block, `preparation` runs them for kubelet's calls.
"""

from hami_dra.driver.prepare.assembly import transactions_of
from hami_dra.driver.prepare.cdi import edits_of
from hami_dra.driver.prepare.cdi import kind as cdi_kind
from hami_dra.driver.prepare.claim_status import ClaimStatusWriter
from hami_dra.driver.prepare.errors import PrepareError
from hami_dra.driver.prepare.files import Files
from hami_dra.driver.prepare.inventory import Inventory, inventory_of
from hami_dra.driver.prepare.preparation import NodePreparation
from hami_dra.driver.prepare.records import ContainerView, GrantedDevice, Partition, Record
from hami_dra.driver.prepare.trees import remove_tree
from hami_dra.driver.prepare.vanished import VanishedClaims
