"""A small Kubernetes in this process, for the demo and for tests: `MemoryCluster` is its API server,
and `EmbeddedControlPlane` the parts of its controllers, scheduler and kubelet that DRA pods need.
"""

from hami_dra.kube.embedded.api_server import Admission, MemoryCluster, Request, default_kinds
from hami_dra.kube.embedded.control_plane import EmbeddedControlPlane
