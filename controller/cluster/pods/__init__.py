"""Pods: those that count on nodes, what equal pods share, and their groups. Pure."""
