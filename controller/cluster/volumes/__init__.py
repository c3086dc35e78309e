"""Claims, volumes, classes and drivers of storage, and the volumes that nodes can still take. Pure.

Source: Kubernetes 1.37.1 pkg/scheduler/framework/plugins, k8s.io/component-helpers/storage/volume and
k8s.io/csi-translation-lib.
"""
