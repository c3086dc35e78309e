"""Diagnosis of a cluster that runs hami-dra: pure checks, each with a fix, over a collected
state.
"""
