"""explain over the allocator's table of cases: whatever a claim asks, the explanation agrees with the decision it explains."""

import math

from controller.allocation.features import GATES, FeatureGates
from controller.insight.explain.explain import explain
from controller.insight.simulation import SimulationSettings, simulate
from controller.insight.simulation.question import question
from controller.views.explanation import from_json, to_json
from tests.conformance.test_simulate_conformance import CASES, documents


def test_every_case_is_explained_as_it_was_decided():
    for case in CASES:
        wanted = {gate for feature in case["features"] for gate in feature.split("+")}
        gates = FeatureGates.parse(",".join(f"{gate}={str(gate in wanted).lower()}" for gate in GATES))
        settings = SimulationSettings(gates=gates)
        report = simulate(documents(case), settings)
        asked = question(documents(case), "pod", "default/pod", settings)
        found = explain(asked.inventory, asked.request, asked.options)
        assert from_json(to_json(found)) == found
        if report.placements:
            [placement] = report.placements
            assert (found.outcome, found.node) == ("placed", placement["node"]), case["name"]
            results = [each for claim in placement["claims"] for each in claim["allocation"]["devices"]["results"]]
            chosen = [f"{each['driver']}/{each['pool']}/{each['device']}" for each in results]
            assert [each.device for each in found.chosen] == chosen, case["name"]
            shown = {card.device for node in found.nodes for card in node.cards if card.chosen}
            assert shown <= set(chosen), case["name"]
        else:
            [refused] = report.unplaced
            assert found.outcome == ("error" if refused["error"] else "refused"), case["name"]
            assert found.reasons == refused["reasons"], case["name"]
            assert refused["message"].startswith(found.message), case["name"]
            assert not any(node.fits for node in found.nodes)
        for node in found.nodes:
            assert math.isclose(sum(term.value for term in node.terms), node.score, abs_tol=1e-9)
            for card in node.cards:
                assert not card.terms or math.isclose(sum(term.value for term in card.terms), card.score, abs_tol=1e-9)
