"""Which pods are gangs: the controller, explain, simulate, whatif, status --pending and the webhook's notice agree."""

import typing

import pytest
from typer.testing import CliRunner

from controller.cli.main import app
from controller.cli.state import gang_sources_in
from controller.cluster.pods.gang_key import OPTIONAL_SOURCES, Source
from controller.insight.manifests import gather
from controller.insight.simulation import SimulationSettings, pending_pods, question
from controller.insight.simulation.run import play
from controller.insight.whatif import Change, compare
from controller.webhook import Options, convert_pod
from tests.support.gang_objects import (
    KUEUE_COUNT,
    MIN_AVAILABLE_LABEL,
    annotated,
    in_coscheduling_group,
    in_kueue_group,
    in_labelled_group,
    in_leader_worker_set,
    in_pod_group,
    in_volcano_group,
    labelled,
)
from tests.support.harness import play as play_story
from tests.support.harness import pod as gated_pod
from tests.support.manifests import cluster, documents, part, pod, template
from tests.unit.reconcile.gang_stories import QUICK, gates, nodes, prepare

STATED = {
    "PodGroup": lambda body: in_pod_group(body, "train"),
    "coscheduling": lambda body: in_coscheduling_group(body, "train"),
    "labels": lambda body: in_labelled_group(body, "train", 2),
    "kueue": lambda body: in_kueue_group(body, "train", 2),
    "leaderworkerset": lambda body: in_leader_worker_set(body, "train", group=0, worker=0, size=2),
    "volcano": lambda body: in_volcano_group(body, "train"),
}
CARDS = [*cluster("n1"), template("card", part("15Gi", "100"))]
NONE = frozenset()
OPTIONS = [NONE, frozenset({"leaderworkerset"}), frozenset({"volcano"}), OPTIONAL_SOURCES]
every_source = pytest.mark.parametrize("source", STATED)
every_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: "+".join(sorted(option)) or "none")


def waits_with_its_gang(source, option):
    """The rule that all of them must follow: one of two members exists, so a gang waits and a pod alone does not."""
    return source not in OPTIONAL_SOURCES or source in option


def test_every_source_is_here():
    assert set(STATED) == set(typing.get_args(Source))


@every_option
@every_source
def test_the_commands_agree(source, option):
    expected = waits_with_its_gang(source, option)
    raws, settings = [*CARDS, STATED[source](pod("m0", "template:card"))], SimulationSettings(gang_sources=option)
    asked = question(documents(*raws), "pod", "default/m0", settings)
    assert (asked.request is None) == (asked.gang is not None) == expected
    report = play(gather(documents(*raws)), settings).report
    assert bool(report.gangs) == bool(report.unplaced) == expected
    [listed] = pending_pods(documents(*raws), settings).pods
    assert bool(listed.gang) == expected
    found = compare(
        documents(*CARDS), Change(settings=settings, present=settings, additions=tuple(documents(raws[-1])))
    )
    assert bool(found.unplaced) == expected
    said = [each for each in (*asked.notes, *report.notices) if "the pod is placed alone" in each]
    assert len(said) == (0 if expected else 2)


@every_option
@every_source
def test_the_webhook_says_which_group_is_not_read(source, option):
    body = STATED[source](pod("m0", "template:card"))
    said = [
        each
        for each in convert_pod(body, "default", Options(gang_sources=option)).warnings
        if "the pod is placed alone" in each
    ]
    if waits_with_its_gang(source, option):
        assert said == []
    else:
        [sentence] = said
        assert f"is read only with --gangs-of={source}; the pod is placed alone" in sentence
    assert not convert_pod(body, "default", Options()).warnings, "where the controller's option is not known"
    alone = STATED[source](pod("m0"))
    assert not convert_pod(alone, "default", Options(gang_sources=option)).warnings, "it asks for no devices"


@every_option
@every_source
def test_the_controller_agrees(source, option):
    async def story(harness):
        harness.start(gang_sources=option, **QUICK)
        await prepare(harness, STATED[source](gated_pod("m0", templates=["whole"], gated=True)))
        await harness.sleep(5)
        waits = waits_with_its_gang(source, option)
        assert (await gates(harness), bool((await nodes(harness))["m0"])) == ({"m0"} if waits else set(), not waits)

    play_story(story, controller=False)


REQUIRED, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
STATED_SIZES = (
    (MIN_AVAILABLE_LABEL, lambda size: lambda body: labelled(STATED["labels"](body), {MIN_AVAILABLE_LABEL: size})),
    (KUEUE_COUNT, lambda size: lambda body: annotated(STATED["kueue"](body), {KUEUE_COUNT: size})),
)
SIZES = {
    f"{name} {value!r}": ([STATED["labels" if name == MIN_AVAILABLE_LABEL else "kueue"], with_size(value)], name)
    for name, with_size in STATED_SIZES
    for value in ("two", "0", "-1", "1.5", "2 ", "", "99999999999", "\u0663")
}


def in_kueue_with(name, *values):
    return [lambda body, value=value: annotated(STATED["kueue"](body), {name: value}) for value in values]


FAULTY = SIZES | {
    "members that disagree": (
        [with_size("3") for _, with_size in STATED_SIZES[:1]] + [STATED["labels"]],
        "disagree about",
    ),
    "two required keys": (in_kueue_with(REQUIRED, "a", "b"), "more than one topology key"),
    "a key that no node has": (in_kueue_with(REQUIRED, "rack", "rack"), "no node has the label rack"),
    "many preferred keys": (in_kueue_with(PREFERRED, *"abcde"), "prefers more than"),
    "no such PodGroup": ([STATED["PodGroup"]], "PodGroup default/train does not exist"),
}


@pytest.mark.parametrize(("members", "what"), FAULTY.values(), ids=FAULTY)
def test_a_faulty_gang_is_told_in_the_same_words_by_events_and_commands(members, what):
    names, notes = [f"m{number}" for number in range(len(members))], {}

    async def story(harness):
        harness.start(**QUICK)
        gated = [gated_pod(name, templates=["whole"], gated=True) for name in names]
        await prepare(harness, *[state(body) for state, body in zip(members, gated, strict=True)])
        await harness.sleep(5)
        for event in await harness.events():
            if what in event["note"]:
                notes[event["regarding"]["name"]] = event["note"]

    play_story(story, controller=False)
    stated = [state(pod(name, "template:card")) for state, name in zip(members, names, strict=True)]
    files, settings = documents(*CARDS, *stated), SimulationSettings()
    said = notes[names[0]].partition(". None of its pods is placed")[0].partition(". Run: ")[0]
    assert what in said
    for name in names:
        asked = question(files, "pod", f"default/{name}", settings)
        assert said in (asked.problem, asked.gang.message)
        assert asked.gang.message == said
    report = play(gather(files), settings).report
    assert {each["message"] for each in report.unplaced} == {said}
    assert {why for each in pending_pods(files, settings).pods for why in each.why} == {said}
    found = compare(documents(*CARDS), Change(settings=settings, present=settings, additions=tuple(documents(*stated))))
    assert said in str(found)


@pytest.mark.parametrize(("members", "name"), SIZES.values(), ids=SIZES)
def test_a_size_that_is_none_is_told_at_apply(members, name):
    good, bad = [convert_pod(state(pod("m", "template:card")), "default", Options()).warnings for state in members]
    assert not good
    [sentence] = bad
    assert name in sentence
    assert sentence.endswith("set it to the number of pods that must run together, 1 or more")


@pytest.mark.parametrize(
    ("arguments", "sources"),
    [
        ("", None),
        ("controller\n--mode=exclusive", NONE),
        ("controller\n--gangs-of=volcano\n--mode=exclusive", {"volcano"}),
        ("controller\n--gangs-of\nvolcano\n--gangs-of=leaderworkerset", OPTIONAL_SOURCES),
        ("controller\n--gangs-of=other", NONE),
    ],
)
def test_the_running_controller_s_option_is_read_from_its_arguments(arguments, sources):
    assert gang_sources_in(arguments) == sources


@pytest.mark.parametrize("command", ["controller", "webhook", "explain", "simulate", "whatif"])
def test_each_command_has_the_option(command):
    assert "--gangs-of" in CliRunner().invoke(app, [command, "--help"]).output
