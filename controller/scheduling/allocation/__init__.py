"""Devices that may be allocated: the semantics of DRA for one node. `controller.scheduling.scoring`
chooses among them.
"""
