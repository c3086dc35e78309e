"""Sentences about refused pods in Chinese: all of those that users meet, and only those that the code says."""

import re
from pathlib import Path

import pytest
import yaml

from controller.dashboard.chinese_sentences import PARTS
from controller.dashboard.sentences import chinese
from controller.dashboard.text import Texts
from tests.docs.test_docs_messages import ANY, is_said

MISTAKES = Path(__file__).parents[2] / "fixtures" / "mistakes"
ENGLISH = re.compile(r"\b(needs|the|most|has|have|there|are|such|fits?|never|with|or)\b")
"""Words that only an English sentence has."""
OF_PLUGINS = {"42-host-port-that-is-taken", "44-more-replicas-than-nodes", "60-near-a-pod-that-is-not-there"}
"""kube-scheduler's plugins speak English only."""


def refusals():
    found = []
    for path in sorted(MISTAKES.glob("*/expect.yaml")):
        for told in yaml.safe_load(path.read_text())["told"]:
            if told.get("reason") == "FilteringFailed" and path.parent.name not in OF_PLUGINS:
                sentence = told["says"].partition(". Run: hami-dra")[0].replace("...", "x")
                if sentence.startswith(("no node fits", "gang")):
                    found.append(pytest.param(sentence, id=path.parent.name))
    return found


@pytest.mark.parametrize("sentence", refusals())
def test_what_users_are_told_is_told_in_chinese(sentence):
    text = Texts("zh").sentence(sentence)
    assert not ENGLISH.search(text), text
    assert set(re.findall(r"\d+", sentence)) <= set(re.findall(r"\d+", text)), "every figure"
    assert Texts("en").sentence(sentence) == sentence


def test_what_plugins_say_stays_as_it_is():
    text = chinese("no node fits now: request gpu/b: on n1: NodePorts: port 80/TCP is taken")
    assert text.startswith("目前没有节点能满足")
    assert "请求 gpu/b" in text
    assert text.endswith("NodePorts: port 80/TCP is taken")


def test_decisions():
    assert "n1 是 3 个可用节点中最好的" in chinese("n1 is the best of 3 nodes that fit; 2 others do not")


@pytest.mark.parametrize(
    "text", ["", "Pod a/b: spec.schedulingGates: waits for x.com/y; ask them", "no key: x. Write y"]
)
def test_other_texts_stay_as_they_are(text):
    assert chinese(text) == text


def test_patterns_are_those_of_the_code():
    clauses = [re.sub(r"\{\w+\}", ANY, pattern) for pattern in PARTS]
    assert [clause for clause in clauses if len(re.findall(r"[a-z]{2,}", clause)) > 2 and not is_said(clause)] == []
