"""The node driver as a program: find cards, publish them, watch their health, serve kubelet. Entry:
`service.NodeDriver`.
"""
