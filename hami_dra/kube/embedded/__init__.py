"""A small Kubernetes in memory: the parts of its controllers, scheduler and kubelet that DRA pods need."""
