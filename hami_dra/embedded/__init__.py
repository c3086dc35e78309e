"""A small Kubernetes in memory: what kube-controller-manager, kube-scheduler and kubelet do, as far as DRA pods need it."""
