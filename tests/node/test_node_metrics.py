"""What controller, webhook and driver say on /metrics while pods run on a real node: clean to Prometheus' linter, and of one mind."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.objects import claim, legacy_pod, part, pod
from tests.support.oracles import conversation

T4 = "g4dn.12xlarge"
MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="module")
def ask():
    yield from conversation("prometheus")


def by_pod(text, name):
    """(pod, uuid of the card) → value."""
    return {
        (sample.labels["pod"], sample.labels["device_uuid"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_controller_webhook_and_driver_say_the_same_of_a_pod(bench, ask):
    driver = bench.start_driver(T4, "--monitor-interval=1s")
    bench.create(
        legacy_pod("legacy", gpu=1, gpumem=7500, gpucores=30),
        claim("half", part("4Gi", "20")),
        pod("claimed", claims=["half"]),
    )
    bench.wait_running("legacy", "claimed")
    programs = {name: bench.hami.programs[name] for name in ("controller", "webhook")} | {"driver": driver}
    bench.hami.wait_for(
        "the cards to be looked at", lambda: "hami_host_gpu_memory_used_bytes{" in driver.get("/metrics")[1]
    )
    texts = {name: program.get("/metrics")[1] for name, program in programs.items()}
    for name, text in texts.items():
        answer = ask({"exposition": text})
        assert answer["problems"] == [], name

    given = by_pod(texts["controller"], "hami_dra_vgpu_memory_allocated_bytes")
    assert {name: value for (name, _), value in given.items()} == {"legacy": 7500 * MIB, "claimed": 4 * GIB}
    assert by_pod(texts["driver"], "hami_vgpu_memory_limit_bytes") == given
    cores = by_pod(texts["controller"], "hami_dra_vgpu_core_allocated_ratio")
    assert {key: round(100 * value) for key, value in cores.items()} == by_pod(
        texts["driver"], "hami_vgpu_core_limit_ratio"
    )
    assert 'hami_dra_webhook_reviews_total{result="converted"}' in texts["webhook"]
