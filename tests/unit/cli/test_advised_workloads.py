"""Which workloads the doctor reads of a live cluster."""

import asyncio

import pytest

from controller.cli.advised_workloads import read_workloads
from hami_dra.kube.http import connect
from tests.support.served import Served


@pytest.fixture
def read(tmp_path):
    """Objects and what the server refuses → names of the workloads that were read, what is missing, what was listed."""

    def read(objects, **options):
        missing = []

        async def reading(cluster):
            try:
                return await read_workloads(cluster, missing.append)
            finally:
                await cluster.close()

        with Served(objects, **options) as served:
            found = asyncio.run(reading(connect(str(served.kubeconfig(tmp_path)))))
        return [each["metadata"]["name"] for each in found], missing, [path for path, _ in served.seen]

    return read


def workload(api_version, kind, name, owner=""):
    owners = [{"kind": owner, "name": "o", "controller": True}] if owner else []
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "ownerReferences": owners}}


ALL = [
    workload("apps/v1", "Deployment", "deployment"),
    workload("apps/v1", "ReplicaSet", "replicas", owner="Deployment"),
    workload("apps/v1", "StatefulSet", "stateful"),
    workload("apps/v1", "DaemonSet", "daemon"),
    workload("batch/v1", "CronJob", "nightly"),
    workload("batch/v1", "Job", "nightly-1", owner="CronJob"),
    workload("batch/v1", "Job", "once"),
]


def test_each_template_is_read_once_where_people_write_it(read):
    found, missing, listed = read(ALL)
    assert found == ["deployment", "stateful", "daemon", "nightly", "once"]
    assert missing == []
    assert listed == [
        *(f"/apis/apps/v1/{plural}" for plural in ("deployments", "statefulsets", "daemonsets")),
        *(f"/apis/batch/v1/{plural}" for plural in ("cronjobs", "jobs")),
    ]


def test_what_may_not_be_listed_is_named_and_the_rest_is_read(read):
    found, missing, _ = read(ALL, forbidden=["cronjobs", "daemonsets"])
    assert found == ["deployment", "stateful", "once"]
    assert missing == ["daemonsets, cronjobs are not examined: this user may not list them in all namespaces"]
