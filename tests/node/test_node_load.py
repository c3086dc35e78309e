"""A hundred pods at once on one node, started and deleted: all run exactly once, nothing is left.

How long kubelet waits for the driver is printed, and judged by nobody: a machine that builds something meanwhile is slow.
"""

import re
import time

import pytest

from tests.e2e.objects import part, pod, template

PODS = 100
SECONDS = re.compile(
    r'^hami_dra_driver_claim_seconds_bucket\{call="(\w+)",driver="nvidia\.hami\.io",le="(.+)"\} (.+)$', re.MULTILINE
)


def times(program):
    """Calls of kubelet so far: kind → (upper edge in seconds, calls that took no longer)."""
    found = {}
    for call, edge, count in SECONDS.findall(program.get("/metrics")[1]):
        found.setdefault(call, []).append((float(edge), float(count)))
    return found


def quantile(buckets, share):
    """As Prometheus has it: on a straight line between the edges of a bucket."""
    wanted = share * buckets[-1][1]
    edge_before, count_before = 0.0, 0.0
    for edge, count in buckets:
        if count >= wanted:
            return edge_before + (edge - edge_before) * (wanted - count_before) / (count - count_before)
        edge_before, count_before = edge, count
    raise ValueError(f"no calls: {buckets}")


def figures(call, buckets):
    median, slow = (1000 * quantile(buckets, share) for share in (0.5, 0.99))
    return f"{call}: {buckets[-1][1]:.0f} calls, median {median:.0f} ms, p99 {slow:.0f} ms"


@pytest.mark.timeout(900)
def test_a_hundred_pods_at_once(bench, capsys):
    driver = bench.start_driver("dgx-h100", "--slots=20")
    names = [f"p{number:03}" for number in range(PODS)]
    bench.create(template("one", part("1Gi", "1")))
    begun = time.monotonic()
    bench.create(*(pod(name, templates=["one"]) for name in names))
    bench.wait_running(*names, seconds=300)
    running = time.monotonic() - begun
    assert len(bench.prepared()) == PODS
    assert len(bench.cdi_files()) == PODS
    for name in names:
        assert bench.got(name)["env"]["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"

    bench.delete_all(wait=False)
    bench.wait_empty(seconds=300)
    bench.wait_nothing_left(seconds=120)
    lines = [f"from their creation until all run: {running:.0f} s"]
    lines += [figures(call, buckets) for call, buckets in times(driver).items()]
    with capsys.disabled():
        print("", *(f"{PODS} pods at once, {line}" for line in lines), sep="\n")  # noqa: T201 (what this test is for)
