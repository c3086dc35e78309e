"""Each difference that docs/migration.md states is held by a test, named here by the first cell of its row."""

import re

import pytest

from tests.docs.commands_in_docs import ROOT
from tests.docs.test_docs_security import functions

PAGE = (ROOT / "docs/migration.md").read_text()
MANIFESTS = "unit/vendors/test_manifests_of_hami.py"
REFUSED = f"{MANIFESTS}::test_what_is_not_placed_as_by_hami_is_refused_with_what_to_do_and_stands_in_the_docs"
NOTICES = "unit/webhook/test_notices.py"
CONVERT = "unit/webhook/test_convert.py"

FROM_HAMI = {
    "resource names, annotations of cards and policies": [
        f"{MANIFESTS}::test_each_request_is_placed_as_hami_would",
        f"{CONVERT}::test_policies_are_carried_over_untouched",
        "unit/webhook/test_manifests.py::test_the_webhook_is_asked_about_exactly_the_resources_that_are_converted",
    ],
    "`schedulerName: hami-scheduler`": [f"{NOTICES}::test_another_scheduler_is_noted_by_convert"],
    "two axes, four patterns": [
        f"{MANIFESTS}::test_the_four_patterns_of_the_demo",
        "e2e/test_patterns.py::test_the_four_patterns_one_after_the_other",
    ],
    "`runtimeClassName`": [
        f"{CONVERT}::test_the_runtime_class_is_set_as_hami_does",
        f"{CONVERT}::test_two_vendors_with_different_runtime_classes_are_refused",
    ],
    "an unknown policy": ["unit/scoring/test_policies.py::test_an_unknown_policy_names_object_value_and_choices"],
    "plain `nvidia.com/gpu: 1`": [f"{MANIFESTS}::test_each_request_is_placed_as_hami_would"],
    "pods in `kube-system` (HAMi's Enflame examples)": [f"{NOTICES}::test_namespaces_that_are_not_converted_are_named"],
    "a list of cards that is empty": [f"{CONVERT}::test_an_empty_list_is_no_constraint"],
    'a boolean that is none (`"yes"`)': ["unit/vendors/test_nvidia.py::test_booleans_are_those_of_go"],
    "`spec.nodeName` with cards": [
        REFUSED,
        f"{NOTICES}::test_a_pod_with_a_node_is_refused_as_by_hami_and_simulate_says_so",
    ],
    "`nvidia.com/mig-<profile>` (whole instances by name)": [
        REFUSED,
        f"{NOTICES}::test_mig_profiles_by_name_are_refused_with_what_to_write",
    ],
    "`enflame.com/drs-gcu` and its memory and cores": [
        "unit/vendors/test_enflame.py::test_drs_names_ask_for_slices_of_one_card_with_their_memory_and_cores"
    ],
    "`metax-tech.com/sgpu-app-class`": [
        "unit/vendors/test_metax.py::test_an_online_task_goes_where_fewest_online_tasks_are_and_last_to_offline_ones",
        "unit/vendors/test_metax.py::test_tasks_of_one_class_share_a_card_and_offline_ones_keep_off_online_ones",
    ],
    "`nvidia.com/vgpu-mode: mps`": [REFUSED],
    "`huawei.com/vnpu-mode: hami-core` (soft slices of an NPU, memory and percent of cores)": [REFUSED],
    "of equal cards": [
        "unit/scoring/test_formulas.py::test_score_comes_before_numa_and_index_breaks_ties",
        "property/test_vendor_neuron_singles.py::test_from_an_idle_machine_singles_go_in_hamis_order_under_every_policy",
    ],
    "`16Gi` for `nvidia.com/gpumem`": [REFUSED],
    "between choice and start": ["node/test_node_load.py::test_a_hundred_pods_at_once"],
    "which card the container gets": [
        "node/test_node_runs.py::test_legacy_pods_and_claim_pods_share_cards_and_leave_nothing"
    ],
    "quota": [
        "unit/inventory/quota/test_vendors.py::test_what_a_request_counts",
        "e2e/test_quota.py::test_many_pods_at_once_take_what_the_quota_allows_and_no_more",
    ],
    "events": ["unit/reconcile/runtime/test_events.py", "e2e/test_explain_on_cluster.py"],
    "metrics": [
        "unit/reconcile/observability/test_collectors.py::test_names_of_hami_are_there_only_on_demand",
        "unit/monitor/test_node.py::test_names_and_labels_are_those_of_hami_and_its_webui",
        "unit/driver/node/test_partition_metrics.py::test_instances_have_hamis_labels",
    ],
    "usage of each container of a shared card": [
        "unit/monitor/test_node.py::test_what_containers_use_has_names_of_ours_and_with_the_switch_those_of_hamis_monitor",
        "node/test_node_memory.py::test_a_file_of_usage_on_the_host_is_found_again_by_a_container_that_starts_again",
    ],
    "priority of running tasks, feedback every 5 s": [
        "unit/vendors/test_nvidia_usage.py::test_the_less_important_waits_and_goes_on",
        "unit/vendors/test_nvidia_usage.py::test_a_priority_that_a_container_writes_into_its_file_counts_for_nothing",
    ],
    "Hygon, Cambricon, Iluvatar, Moore Threads and others": [
        f"{NOTICES}::test_a_name_in_the_domain_of_a_vendor_that_nobody_reads_is_noted"
    ],
}

FROM_HAMI_DRA = {
    "class and driver `hami-core-gpu.project-hami.io`": [
        "e2e/test_compat.py::test_claims_of_every_form_are_placed_unchanged",
        "e2e/test_compat.py::test_its_devices_are_fenced_and_scored_like_ours",
    ],
    "attributes in the driver's domain (`minor`, `uuid`, `productName`)": ["unit/vendors/test_all_published.py"],
    "capacities `cores`, `memory`": ["unit/vendors/test_cards_published.py::test_sharing_policy_of_a_card"],
    "one claim for each container, which its webhook deletes with the pod": [
        f"{CONVERT}::test_the_same_wish_is_the_same_template_whoever_has_it"
    ],
    "`use-gputype` matches letter by letter": [
        f"{CONVERT}::test_types_are_looked_for_in_the_product_name_whatever_the_case"
    ],
    "NVIDIA, Ascend, Hygon": ["unit/vendors/test_all_together.py"],
}


def rows(heading):
    """The first cells of the table of differences below a heading of the second level: the last one before those of tools."""
    _, found, text = PAGE.partition(f"\n## {heading}\n")
    assert found
    text = text.partition("\n## ")[0].partition("\n### Helm values")[0]
    table = [line for line in text.splitlines() if line.startswith("|")]
    begin = max(number for number, line in enumerate(table) if re.fullmatch(r"[|-]+", line))
    return [line.split("|")[1].strip() for line in table[begin + 1 :]]


@pytest.mark.parametrize(("heading", "held"), [("From HAMi", FROM_HAMI), ("From HAMi-DRA", FROM_HAMI_DRA)])
def test_each_row_names_tests_that_exist(heading, held):
    assert rows(heading) == list(held)
    missing = []
    for test in {test for tests in held.values() for test in tests}:
        path, _, name = test.partition("::")
        file = ROOT / "tests" / path
        if not file.is_file() or (name and name not in functions(file.read_text())):
            missing.append(test)
    assert not missing
