"""Keeps kube-scheduler's own allocator off the managed devices, and proves it with a probe."""
