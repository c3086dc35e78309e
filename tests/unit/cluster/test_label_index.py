"""Selectors found by labels that they may match, and labels by selectors."""

from controller.cluster.nodes.label_index import LabelsIndex, SelectorIndex, required_labels
from hami_dra.api.meta import LabelSelector, LabelSelectorRequirement
from hami_dra.api.selectors import label_selector_matches

SELECTORS = {
    "all": LabelSelector(),
    "web": LabelSelector(match_labels={"app": "web"}),
    "web or db": LabelSelector(match_expressions=(LabelSelectorRequirement("app", "In", ("web", "db", "web")),)),
    "not web": LabelSelector(match_expressions=(LabelSelectorRequirement("app", "NotIn", ("web",)),)),
    "none": LabelSelector(match_expressions=(LabelSelectorRequirement("app", "In", ()),)),
    "many": LabelSelector(match_expressions=(LabelSelectorRequirement("app", "In", (*map(str, range(40)), "web")),)),
}
LABELS = ({}, {"app": "web"}, {"app": "db", "tier": "back"}, {"tier": "front"}, {"app": "7"})


def test_what_matches_is_always_a_candidate_and_each_is_one_once():
    selectors: SelectorIndex[str] = SelectorIndex()
    labels: LabelsIndex[int] = LabelsIndex()
    for name, selector in SELECTORS.items():
        selectors.add(name, selector)
    for number, each in enumerate(LABELS):
        labels.add(number, each)
    for number, each in enumerate(LABELS):
        found = [*selectors.candidates(each)]
        assert len(found) == len({*found})
        assert {name for name, selector in SELECTORS.items() if label_selector_matches(selector, each)} <= {*found}
        for selector in SELECTORS.values():
            if label_selector_matches(selector, each):
                assert [*labels.candidates(selector)].count(number) == 1
    assert [*selectors.candidates({"app": "db"})] == ["web or db", "all", "not web"]


def test_nothing_is_kept_of_what_is_removed():
    selectors: SelectorIndex[str] = SelectorIndex()
    for name, selector in SELECTORS.items():
        selectors.add(name, selector)
    for name, selector in SELECTORS.items():
        selectors.remove(name, selector)
    assert not selectors


def test_the_shortest_list_of_values_is_what_a_selector_requires():
    long, short = SELECTORS["many"].match_expressions[0], SELECTORS["web or db"].match_expressions[0]
    assert len(required_labels(SELECTORS["many"])) == 41
    assert required_labels(LabelSelector(match_expressions=(long, short))) == (("app", "web"), ("app", "db"))
