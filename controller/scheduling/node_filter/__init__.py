"""The nodes that kube-scheduler's filter plugins let a pod run on, devices apart: nodes and the pods
on them as columns, one module per plugin. Updated by difference. Pure.
"""
