"""The node driver as a program: finds cards, publishes them, watches over their health, serves kubelet. Entry: `service.NodeDriver`."""
