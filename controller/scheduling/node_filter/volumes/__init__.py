"""kube-scheduler's volume plugins: VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone.

`volume_book.VolumeBook` keeps what they read of the cluster, updated incrementally;
`volume_plugins` says which nodes they refuse for a pod. Source: Kubernetes 1.37.1
pkg/scheduler/framework/plugins, k8s.io/component-helpers/storage/volume and
k8s.io/csi-translation-lib. Pure.
"""
