"""Put the cluster right: allocations that cannot be used, leaked claims, pods that were not converted, uninstall."""

from controller.reconcile.repair.deallocate import Deallocator
from controller.reconcile.repair.external_allocations import ClaimAllocationUse, ExternalAllocationWatch, overlaps
from controller.reconcile.repair.installed_objects import ADMISSION
from controller.reconcile.repair.leaked_claims import LeakedClaims
from controller.reconcile.repair.uninstall import Plan, Uninstaller, to_remove
from controller.reconcile.repair.unserved_pods import NodeResources, UnconvertedPodWatch, UnservedPodWatch
