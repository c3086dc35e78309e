"""Scores and orders: policies, node and device scores, the order in which devices are tried. HAMi's
semantics.
"""
