"""The shell of the controller: watches, queue, commit, fence, undo, leader. The only code that talks to a cluster.

`controller.Controller` assembles the parts; the protocol of one decision is in docs/decision.md.
"""
