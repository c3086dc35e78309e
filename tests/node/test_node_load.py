"""A hundred pods at once, all started and all deleted. Says how long preparing took; judges only that all went well."""

import pytest

from tests.e2e.objects import part, pod, template

PODS = 100
_BUCKETS = 'hami_dra_driver_claim_seconds_bucket{call="prepare",driver="nvidia.hami.io",le="'


def _quantiles(text, *wanted):
    """The upper edges of the buckets of /metrics that hold these quantiles, in seconds."""
    buckets = []
    for line in text.splitlines():
        if line.startswith(_BUCKETS):
            edge, _, count = line.removeprefix(_BUCKETS).partition('"} ')
            buckets.append((float(edge), float(count)))
    total = buckets[-1][1]
    return [next(edge for edge, count in buckets if count >= quantile * total) for quantile in wanted]


@pytest.mark.timeout(900)
def test_a_hundred_pods_at_once(bench, record_testsuite_property, capsys):
    driver = bench.start_driver("dgx-h100", "--slots=20")
    names = [f"p{index:03}" for index in range(PODS)]
    bench.create(template("one", part("1Gi", "1")))
    bench.create(*(pod(name, templates=["one"]) for name in names))
    bench.wait_running(*names, seconds=300)
    assert len(bench.prepared()) == PODS
    for name in names:
        assert bench.got(name)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    _, metrics = driver.get("/metrics")
    median, slow = _quantiles(metrics, 0.5, 0.99)
    record_testsuite_property("prepare_seconds_median", median)
    record_testsuite_property("prepare_seconds_p99", slow)
    with capsys.disabled():
        print(  # noqa: T201 (the figures are what this test is for)
            f"\n{PODS} pods at once: prepare took at most {median:g} s (median), {slow:g} s (99th of 100)"
        )
    bench.delete_all(wait=False)
    bench.wait_empty(seconds=300)
    bench.wait_nothing_left(seconds=120)
