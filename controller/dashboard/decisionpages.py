"""Content of the pages of decisions: the table of all, and the explanation of one. HTML:
`templates/decisions.html`, `templates/decision.html`.

Called by `pages`. Values only; see `cardpages`.
"""

from collections.abc import Iterable
from typing import Final

from controller.dashboard.cardpages import NoSuchThing
from controller.dashboard.tables import Context, PageTable, Query
from controller.views.columns import Column, Columns
from controller.views.explanation import Explanation, NodeExplanation

MOST_DECISIONS: Final = 1_000
_COLUMNS: Final[Columns[Explanation]] = (
    Column("", sort=lambda _: 0),  # newest first, as the log has them
    Column("pod", "Pod", lambda decision: decision.pod),
    Column("when", "Decided", lambda decision: decision.at),
    Column("outcome", "Outcome", lambda decision: (decision.outcome, decision.pod)),
    Column("node", "Node", lambda decision: (decision.node, decision.pod)),
    Column("reason", "Reason"),
)


class DecisionTable(PageTable[Explanation]):
    columns = _COLUMNS
    asks = ("q", "outcome")

    async def find(self, query: Query) -> list[Explanation]:
        text, outcome = query.get("q", "").strip(), query.get("outcome", "")
        return [
            each
            for each in self._source.decisions.latest(MOST_DECISIONS)
            if text in each.pod and outcome in ("", each.outcome)
        ]

    def decision(self, query: Query) -> Context:
        """Return what the page of one decision shows. Raises NoSuchThing."""
        key, claim = query.get("pod", ""), query.get("claim", "")
        decision = self._source.decisions.of_claim(claim) if claim else self._source.decisions.of_pod(key)
        if decision is None:
            raise NoSuchThing(claim or key)
        pod = self._source.pod(decision.pod)
        return {
            "decision": decision,
            "may_simulate": self._source.namespaces is None,
            "pod": pod if pod is not None and pod.metadata.uid == decision.uid else None,
            "best": _best(decision),
            "fitting": [node for node in decision.nodes if node.fits],
            "unfit": alike(node for node in decision.nodes if not node.fits),
        }


def alike(nodes: Iterable[NodeExplanation]) -> list[list[NodeExplanation]]:
    """Return the nodes by what they are refused for, in the order of the first of each."""
    found: dict[object, list[NodeExplanation]] = {}
    for node in nodes:
        found.setdefault((*sorted(node.reasons.items()), node.text.replace(node.node, "*")), []).append(node)
    return list(found.values())


def _best(explanation: Explanation) -> float:
    """Return the scale of the bars."""
    return max((sum(abs(term.value) for term in node.terms) for node in explanation.nodes), default=0.0)
