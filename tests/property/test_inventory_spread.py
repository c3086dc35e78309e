"""Topology spread against the algorithm of kube-scheduler, written down as it is there (podtopologyspread/filtering.go)."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.inventory.inventory import Inventory
from controller.reasons import catalogue
from controller.reasons.catalogue import CODES
from controller.rules.node_affinity import admits
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.api.selectors import label_selector_matches, tolerates
from tests.cards import node, pod

TAINT = {"key": "dedicated", "effect": "NoSchedule"}
KEYS = ["zone", "host"]
MOSTLY = st.sampled_from([True, True, True, True, False])
LABELS = st.fixed_dictionaries({}, optional={"app": st.sampled_from("ab"), "hash": st.sampled_from("xy")})
SELECTORS = st.sampled_from(
    [
        {},
        {"labelSelector": {}},
        {"labelSelector": {"matchLabels": {"app": "a"}}},
        {"labelSelector": {"matchExpressions": [{"key": "hash", "operator": "Exists"}]}},
    ]
)


@st.composite
def constraints(draw):
    return {
        "topologyKey": draw(st.sampled_from(KEYS)),
        "maxSkew": draw(st.integers(1, 3)),
        "whenUnsatisfiable": draw(st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"])),
        "minDomains": draw(st.none() | st.integers(1, 4)),
        "nodeAffinityPolicy": draw(st.sampled_from([None, "Honor", "Ignore"])),
        "nodeTaintsPolicy": draw(st.sampled_from([None, "Honor", "Ignore"])),
        "matchLabelKeys": draw(st.lists(st.sampled_from(["hash", "absent"]), max_size=2, unique=True)),
        **draw(SELECTORS),
    }


@st.composite
def clusters(draw):
    nodes = []
    for number in range(draw(st.integers(2, 6))):
        labels = {"gpu": draw(st.sampled_from("yyn"))}
        if draw(MOSTLY):
            labels["zone"] = draw(st.sampled_from("abc"))
        if draw(MOSTLY):
            labels["host"] = f"n{number}"
        taints, cordoned = ([] if draw(MOSTLY) else [TAINT]), not draw(MOSTLY)
        nodes.append(node(f"n{number}", labels=labels, taints=taints, unschedulable=cordoned))
    running = [
        pod(
            f"run-{number}",
            namespace=draw(st.sampled_from(["default", "default", "default", "other"])),
            labels=draw(LABELS),
            nodeName=draw(st.sampled_from([each.metadata.name for each in nodes] + ["gone"])),
        )
        for number in range(draw(st.integers(3, 12)))
    ]
    wanted = pod(
        "wanted",
        labels=draw(LABELS),
        nodeSelector=draw(st.sampled_from([{}, {"gpu": "y"}])),
        tolerations=draw(st.sampled_from([[], [{"key": "dedicated", "operator": "Exists"}]])),
        topologySpreadConstraints=draw(st.lists(constraints(), min_size=1, max_size=3)),
    )
    return nodes, running, wanted


def matches(selector, keys, own, labels):
    """The selector with what matchLabelKeys adds, and whether it is empty."""
    if selector is None:
        return False, False
    added = tuple(LabelSelectorRequirement(key=key, operator="In", values=(own[key],)) for key in keys if key in own)
    whole = LabelSelector(
        match_labels=selector.match_labels, match_expressions=tuple(selector.match_expressions) + added
    )
    return label_selector_matches(whole, labels), not (whole.match_labels or whole.match_expressions)


def refused(nodes, running, wanted):
    """Names of the nodes that the plugin's Filter refuses."""
    hard = [each for each in wanted.spec.topology_spread_constraints if each.when_unsatisfiable == "DoNotSchedule"]
    keyed = [each for each in nodes if all(one.topology_key in each.metadata.labels for one in hard)]
    return {name for one in hard for name in refused_by(one, nodes, keyed, running, wanted)}


def refused_by(one, nodes, keyed, running, wanted):
    own = wanted.metadata.labels
    number = Counter()
    for each in keyed:
        if (one.node_affinity_policy or "Honor") == "Honor" and not admits(wanted, each):
            continue
        if (one.node_taints_policy or "Ignore") == "Honor" and untolerated(wanted, each):
            continue
        beside = (other for other in running if other.spec.node_name == each.metadata.name)
        counted = (other for other in beside if other.metadata.namespace == "default")
        found = [matches(one.label_selector, one.match_label_keys, own, other.metadata.labels) for other in counted]
        number[each.metadata.labels[one.topology_key]] += sum(match and not empty for match, empty in found)
    fewest = min(number.values()) if len(number) >= (one.min_domains or 1) else 0
    itself, _ = matches(one.label_selector, one.match_label_keys, own, own)
    for each in nodes:
        value = each.metadata.labels.get(one.topology_key)
        if value is None or number[value] + itself - fewest > one.max_skew:
            yield each.metadata.name


def untolerated(wanted, each):
    return any(not any(tolerates(one, taint) for one in wanted.spec.tolerations) for taint in each.spec.taints)


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_spread_is_kube_schedulers(cluster):
    nodes, running, wanted = cluster
    inventory = Inventory()
    for each in nodes:
        inventory.node_changed(None, each)
    inventory.rules.node_fit(wanted)  # from here on the counts are kept
    for each in running:
        inventory.pod_changed(None, each)
    fit = inventory.rules.node_fit(wanted)
    bad = refused(*cluster)
    earlier = {"", catalogue.NODE_TOPOLOGY_SPREAD}
    for each in nodes:
        code = CODES[fit.codes[inventory.nodes.index_of(each.metadata.name)]]
        if code in earlier:
            assert (code == catalogue.NODE_TOPOLOGY_SPREAD) == (each.metadata.name in bad)
