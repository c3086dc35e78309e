"""Why a pod got its node and its cards, or why it got none: every node and card with its figures.

Called by `controller.reconcile.decisionlog` (what was decided), `hami-dra explain` (what would be decided now) and the log at
levels 4 and 5. Pure: reads the inventory and what `decide` says about a decision, decides nothing itself.
"""
