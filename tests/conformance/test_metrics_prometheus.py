"""Prometheus' own code on what we say and ask: promlint on expositions, rulefmt on alert rules, its parser on every expression, and its
engine on the alerts: each fires for what it is about and for nothing else. The Go program is hack/oracle/prometheus.
"""

import pytest

from hami_dra.api.legacy_metrics import NameSet
from tests.support import expositions
from tests.support.monitoring import RULES, alerts, expressions, metrics_in
from tests.support.oracles import conversation

OURS = {
    "controller": expositions.of_controller,
    "driver": expositions.of_driver,
    "webhook": expositions.of_webhook,
}
OTHERS = {"up": {"job"}, "kube_daemonset_status_number_unavailable": {"daemonset"}}
"""Metrics of Prometheus itself and of kube-state-metrics that the rules ask for → labels."""
EXPORTED = set().union(*(metrics_in(said()) for said in OURS.values()))


@pytest.fixture(scope="module")
def ask():
    yield from conversation("prometheus")


@pytest.mark.parametrize("program", OURS)
def test_what_the_programs_say_is_clean(ask, program):
    answer = ask({"exposition": OURS[program]()})
    assert answer["problems"] == []
    assert len(answer["metrics"]) > 3


def test_names_of_hami_are_read_too(ask):
    """They are not all as promlint would have them, and that is why they are not there by default."""
    answer = ask({"exposition": expositions.of_controller(frozenset(NameSet))})
    assert [text for text in answer["problems"] if "camelCase" not in text and '"_count" suffix' not in text] == []
    assert "GPUDeviceMemoryLimit" in answer["metrics"]


def test_rules_ask_for_what_there_is(ask):
    answer = ask({"rules": RULES})
    assert answer["problems"] == []
    assert {selector["metric"] for selector in answer["selectors"]} - EXPORTED == OTHERS.keys()


def labels_of(said):
    """Metric → labels that its samples have."""
    found = {}
    for line in said.splitlines():
        if not line.startswith("#"):
            name, _, rest = line.partition("{")
            name = name.split(" ")[0]
            labels = {part.partition("=")[0] for part in rest.rpartition("}")[0].split('",')} if rest else set()
            found.setdefault(name, set()).update(labels - {""})
    return found


def test_rules_and_dashboard_ask_by_labels_that_there_are(ask):
    known = dict(OTHERS)
    for said in OURS.values():
        known |= labels_of(said())
    answers = [ask({"rules": RULES}), *(ask({"expression": text}) for text in expressions())]
    asked = [selector for answer in answers for selector in answer["selectors"]]
    assert [each for each in asked if not set(each["labels"]) <= known.get(each["metric"], set())] == []


@pytest.mark.parametrize("expression", expressions())
def test_the_dashboard_asks_for_what_there_is(ask, expression):
    answer = ask({"expression": expression})
    assert answer["problems"] == []
    assert answer["selectors"]
    assert {selector["metric"] for selector in answer["selectors"]} - EXPORTED == set()


# --- alerts ----------------------------------------------------------------------------------------------------------

HOURS = 130
WELL = [
    f'up{{job="gpus/hami-dra-webhook",pod="a"}} 1x{HOURS}',
    f'up{{job="gpus/hami-dra-webhook",pod="b"}} 0x{HOURS}',
    f'up{{job="gpus/hami-dra-driver",pod="a"}} 1x{HOURS}',
    f'kube_daemonset_status_number_unavailable{{daemonset="hami-dra-driver-nvidia"}} 0x{HOURS}',
    f'kube_daemonset_status_number_unavailable{{daemonset="other"}} 3x{HOURS}',
    f'hami_dra_leader{{pod="a"}} 1x{HOURS}',
    f'hami_dra_leader{{pod="b"}} 0x{HOURS}',
    f'hami_dra_exclusive{{pod="a"}} 1x{HOURS}',
    f'hami_dra_exclusive{{pod="b"}} 1x{HOURS}',
    f'hami_dra_fence_ready{{pod="a"}} 1x{HOURS}',
    f'hami_dra_fence_ready{{pod="b"}} 0x{HOURS}',
    f'hami_dra_pending_pods{{state="ready"}} 0x{HOURS}',
    f'hami_dra_pending_pod_oldest_seconds{{state="no_room"}} 0x{HOURS}',
    f'hami_dra_decisions_total{{result="error"}} 0x{HOURS}',
    f'hami_dra_decision_seconds_bucket{{le="0.002"}} 0+60x{HOURS}',
    f'hami_dra_decision_seconds_bucket{{le="+Inf"}} 0+60x{HOURS}',
    f'hami_dra_commits_total{{result="done"}} 0+60x{HOURS}',
    f'hami_dra_commits_total{{result="refused"}} 0x{HOURS}',
    f'hami_dra_undos_total{{cause="node"}} 0x{HOURS}',
    f"hami_dra_write_conflicts_total 0x{HOURS}",
    f'hami_dra_bind_seconds_bucket{{le="1"}} 0+60x{HOURS}',
    f'hami_dra_bind_seconds_bucket{{le="60"}} 0+60x{HOURS}',
    f'hami_dra_bind_seconds_bucket{{le="+Inf"}} 0+60x{HOURS}',
    f"hami_dra_loop_stalled_seconds_total 0+0.1x{HOURS}",
    f"hami_dra_held_back_pods 0x{HOURS}",
    f'hami_dra_foreign_allocations_total{{driver="d"}} 0x{HOURS}',
    f'hami_dra_overlaps_total{{driver="d"}} 0x{HOURS}',
    f'hami_dra_fence_restored_total{{driver="d"}} 0x{HOURS}',
    f'hami_dra_held_by_vanished_claims{{driver="d"}} 0x{HOURS}',
    f'hami_dra_watch_age_seconds{{resource="pods"}} 20x{HOURS}',
    f"hami_dra_events_dropped_total 0x{HOURS}",
    f'hami_dra_unreadable_objects{{resource="pods"}} 0x{HOURS}',
    f'hami_dra_internal_errors_total{{loop="undo"}} 0x{HOURS}',
    f'hami_dra_driver_internal_errors_total{{loop="offers"}} 0x{HOURS}',
    f"hami_dra_webhook_certificate_expiry_timestamp_seconds 9999999x{HOURS}",
    f'hami_dra_driver_registered{{driver="d"}} 1x{HOURS}',
    f'hami_dra_driver_claims_total{{call="prepare",result="refused"}} 0x{HOURS}',
    f'hami_dra_driver_claim_seconds_bucket{{call="prepare",le="0.1"}} 0+2x{HOURS}',
    f'hami_dra_driver_claim_seconds_bucket{{call="prepare",le="+Inf"}} 0+2x{HOURS}',
    f'hami_dra_driver_readings_failed{{driver="d"}} 1x{HOURS}',
    f'hami_dra_driver_monitor_failures_total{{driver="d",kind="hangs"}} 0x{HOURS}',
    f'hami_dra_gpu_health{{node="n",device_uuid="u"}} 1x{HOURS}',
    f'hami_device_ecc_errors_total{{error="uncorrected"}} 3x{HOURS}',
    f'hami_resource_quota_used{{namespace="n"}} 5x{HOURS}',
    f'hami_resource_quota_limit{{namespace="n"}} 10x{HOURS}',
    f'hami_resource_quota_used{{namespace="none"}} 0x{HOURS}',
    f'hami_resource_quota_limit{{namespace="none"}} 0x{HOURS}',
]
"""One value a minute. What stays as it is, and a counter that was something before, is no news."""

BAD = {
    "HamiDraNoLeader": ["hami_dra_leader{} 0"],
    "HamiDraFenceDown": ["hami_dra_fence_ready{} 0"],
    "HamiDraFenceRestored": ['hami_dra_fence_restored_total{driver="d"} 0x115 1'],
    "HamiDraBacklog": ['hami_dra_pending_pods{state="ready"} 3'],
    "HamiDraPodsWithoutRoom": ['hami_dra_pending_pod_oldest_seconds{state="no_room"} 0+60'],
    "HamiDraDecisionErrors": ['hami_dra_decisions_total{result="error"} 0+1'],
    "HamiDraDecisionsSlow": [
        'hami_dra_decision_seconds_bucket{le="0.002"} 0',
        'hami_dra_decision_seconds_bucket{le="1"} 0+60',
    ],
    "HamiDraBindingSlow": ['hami_dra_bind_seconds_bucket{le="1"} 0', 'hami_dra_bind_seconds_bucket{le="60"} 0+60'],
    "HamiDraLoopStalled": ["hami_dra_loop_stalled_seconds_total 0+20"],
    "HamiDraPodsHeldBack": ["hami_dra_held_back_pods 1"],
    "HamiDraCommitsRefused": ['hami_dra_commits_total{result="refused"} 0+1'],
    "HamiDraRepeatedUndos": ["hami_dra_repeated_undos_total 0+1"],
    "HamiDraUndoStorm": ['hami_dra_undos_total{cause="node"} 0+20'],
    "HamiDraConflicts": ["hami_dra_write_conflicts_total 0+30"],
    "HamiDraForeignAllocations": ['hami_dra_foreign_allocations_total{driver="d"} 0x115 1'],
    "HamiDraOverlap": ['hami_dra_overlaps_total{driver="d"} 0x115 1'],
    "HamiDraClaimVanished": ['hami_dra_held_by_vanished_claims{driver="d"} 1'],
    "HamiDraWatchLag": ['hami_dra_watch_age_seconds{resource="pods"} 0+60'],
    "HamiDraGatesNotLifted": ["hami_dra_gates_not_lifted 1"],
    "HamiDraUnreadableObjects": ['hami_dra_unreadable_objects{resource="pods"} 1'],
    "HamiDraInternalErrors": ['hami_dra_internal_errors_total{loop="undo"} 0+1'],
    "HamiDraEventsDropped": ["hami_dra_events_dropped_total 0+1"],
    "HamiDraWebhookDown": ['up{job="gpus/hami-dra-webhook",pod="a"} 0'],
    "HamiDraCertificateMissing": ["hami_dra_webhook_certificate_expiry_timestamp_seconds 0"],
    "HamiDraDriverDown": ['up{job="gpus/hami-dra-driver",pod="a"} 0'],
    "HamiDraCertificateExpiring": ["hami_dra_webhook_certificate_expiry_timestamp_seconds 864000"],
    "HamiDraDriverNotRegistered": ['hami_dra_driver_registered{driver="d"} 0'],
    "HamiDraPrepareErrors": ['hami_dra_driver_claims_total{call="prepare",result="refused"} 0+1'],
    "HamiDraPrepareSlow": [
        'hami_dra_driver_claim_seconds_bucket{call="prepare",le="0.1"} 0',
        'hami_dra_driver_claim_seconds_bucket{call="prepare",le="15"} 0+2',
    ],
    "HamiDraDiscoveryFails": ['hami_dra_driver_readings_failed{driver="d"} 0+1'],
    "HamiDraMonitorFails": ['hami_dra_driver_monitor_failures_total{driver="d",kind="hangs"} 0+1'],
    "HamiDraCardUnhealthy": ['hami_dra_gpu_health{node="n",device_uuid="u"} 0'],
    "HamiDraCardMemoryErrors": ['hami_device_ecc_errors_total{error="uncorrected"} 3x100 4'],
    "HamiDraQuotaNearlyFull": ['hami_resource_quota_used{namespace="n"} 10'],
}


def changed(lines):
    """`WELL`, with these series in the place of theirs; all samples of a metric where the labels are empty."""
    series = {line.rpartition(" ")[0]: line for line in WELL}
    for line in lines:
        name, _, values = line.partition(" ")
        values = values if "x" in values else f"{values}x{HOURS}"
        if "x" in values and values.count(" "):
            first, _, last = values.partition(" ")
            values = f"{first} {last.partition('x')[0]}x{HOURS - int(first.partition('x')[2]) - 1}"
        if name.endswith("{}"):
            for key in [key for key in series if key.startswith(name[:-1])]:
                series[key] = f"{key} {values}"
        else:
            series[name] = f"{name} {values}"
    return list(series.values())


def test_nothing_fires_while_all_is_well(ask):
    answer = ask({"rules": RULES, "series": WELL, "minute": HOURS - 5})
    assert (answer["problems"], answer.get("alerts", [])) == ([], [])


def test_native_mode_has_no_fence(ask):
    native = changed(["hami_dra_fence_ready{} 0", "hami_dra_exclusive{} 0"])
    assert ask({"rules": RULES, "series": native, "minute": HOURS - 5}).get("alerts", []) == []


def test_no_controller_at_all(ask):
    gone = [line for line in WELL if not line.startswith("hami_dra_leader")]
    assert ask({"rules": RULES, "series": gone, "minute": HOURS - 5})["alerts"] == ["HamiDraNoLeader"]


@pytest.mark.parametrize(("job", "alert"), [("webhook", "HamiDraWebhookDown"), ("driver", "HamiDraDriverDown")])
def test_a_component_that_is_gone_is_missed_and_one_that_never_was_is_not(ask, job, alert):
    kept = [line for line in WELL if f"hami-dra-{job}" not in line]
    gone = [*kept, f'up{{job="hami-dra-{job}",pod="a"}} 1x60']
    assert ask({"rules": RULES, "series": gone, "minute": HOURS - 5})["alerts"] == [alert]
    assert ask({"rules": RULES, "series": kept, "minute": HOURS - 5}).get("alerts", []) == []


def test_a_driver_that_is_not_scheduled_is_missed(ask):
    series = changed(['kube_daemonset_status_number_unavailable{daemonset="hami-dra-driver-nvidia"} 1'])
    assert ask({"rules": RULES, "series": series, "minute": HOURS - 5})["alerts"] == ["HamiDraDriverDown"]


@pytest.mark.parametrize("alert", BAD)
def test_each_alert_fires_for_its_own_cause_alone(ask, alert):
    answer = ask({"rules": RULES, "series": changed(BAD[alert]), "minute": HOURS - 5})
    assert (answer["problems"], answer.get("alerts", [])) == ([], [alert])


def test_every_alert_has_a_description():
    assert [name for name, rule in alerts().items() if not rule["annotations"].get("description")] == []


def test_every_alert_was_tried():
    assert BAD.keys() == alerts().keys()
