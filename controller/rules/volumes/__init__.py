"""kube-scheduler's volume plugins: VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone.

`volume_book.VolumeBook` keeps what they read of the cluster, updated incrementally;
`volume_plugins` says which nodes they refuse for a pod. Pure.
"""
