"""Everything of the controller that writes to a cluster: watches, queue, commit, fence,
deallocation, leader.

`controller` and `term` assemble the parts; docs/design/decision.md describes the protocol of one
decision.
"""
