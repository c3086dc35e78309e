"""Worlds in which one pod has no place, what kube-scheduler's own preemption does there, and a judge of plans.

A world is JSON as the API server stores it: `nodes`, `pods` (that run, or that a node is nominated for), `pdbs`, and `pod`,
which waits. Whole cards are the extended resource `example.com/gpu`, because kube-scheduler never preempts for devices: cards
of one kind that nobody shares are the same problem. `answer` is what the oracle (hack/oracle/preempt) says.

`worlds` draws them from a seed, `special` has those that are made by hand, `model` says which sets of victims make room,
without any code of kube-scheduler or hami-dra; `judging` holds a plan against both; `dra_form` turns a world into what
hami-dra reads.
"""
