"""kubelet's side of a DRA driver: registration, prepare and unprepare, health, over gRPC on unix
sockets. Entry: `server.KubeletPlugin`.
"""
