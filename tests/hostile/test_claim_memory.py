"""What a tenant writes into claims and templates keeps no more memory than the part of it that somebody reads."""

import gc
import json
import tracemalloc

import pytest

from hami_dra.api import kinds
from hami_dra.cel import compile_selector
from hami_dra.kube.decoding import read_object, read_page
from tests.hostile.objects import COSTLY

CLAIMS = 200
OUR_DRIVER = "nvidia.hami.io"


def body(number, parameters=None, *, filler=0, owner=""):
    exactly = {"deviceClassName": "nvidia-vgpu.hami.io", "allocationMode": "ExactCount", "count": 1}
    exactly["capacity"] = {"requests": {"memory": "1Gi", "cores": "0"}}
    devices = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters is not None:
        devices["config"] = [{"opaque": {"driver": OUR_DRIVER, "parameters": parameters}}]
    annotations = {"example.com/notes": "x" * filler} if filler else {}
    metadata = {
        "name": f"claim-{number}", "namespace": "evil", "uid": f"6f9619ff-8b86-d011-b42d-{number:>012}",
        "resourceVersion": "5", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
        "labels": {"app": "evil"},
    }  # fmt: skip
    if owner:
        metadata["ownerReferences"] = [{"kind": "Pod", "name": owner, "uid": owner, "controller": True}]
    return {"metadata": metadata, "spec": {"devices": devices}}


def page(items):
    return json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode()


def kept_after(read):
    """Bytes that are allocated by `read()` and still there while its result is."""
    gc.collect()
    tracemalloc.start()
    result = read()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result is not None
    return used


def test_parameters_keep_no_page_alive():
    """A view of the page is what the decoder returns; the other objects on it, megabytes, would live as long as the claim."""
    items = [body(number, {"cores": 1}, filler=10_000) for number in range(CLAIMS)]
    text = page(items)
    assert kept_after(lambda: read_page(kinds.RESOURCE_CLAIM, bytes(bytearray(text)))) < 1_500 * CLAIMS


def test_parameters_keep_no_watch_event_alive():
    texts = [json.dumps(body(number, {"cores": 1}, filler=100_000)).encode() for number in range(20)]

    def read():
        return [read_object(kinds.RESOURCE_CLAIM, bytes(bytearray(text)))[0] for text in texts]

    assert kept_after(read) < 5_000 * len(texts)


@pytest.mark.parametrize("kind", [kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE], ids=lambda kind: kind.name)
def test_long_parameters_are_forgotten_with_their_object(kind):
    def read():
        for number in range(CLAIMS):
            found = body(number, {"notes": f"{number} " + "x" * 10_000})
            if kind is kinds.RESOURCE_CLAIM_TEMPLATE:
                found["spec"] = {"spec": found["spec"]}
            read_object(kind, json.dumps(found).encode())
        return True

    assert kept_after(read) < 500 * CLAIMS


def test_claims_of_one_template_have_one_spec():
    texts = [body(number, {"cores": 1}, owner=f"pod-{number}") for number in range(2)]
    one, other = read_page(kinds.RESOURCE_CLAIM, page(texts)).items
    assert one.spec is other.spec
    assert one.metadata.labels is other.metadata.labels
    assert one.metadata.owner_references != other.metadata.owner_references


def test_a_template_has_the_spec_of_its_claims():
    found = body(1)
    template, _ = read_object(
        kinds.RESOURCE_CLAIM_TEMPLATE, json.dumps({**found, "spec": {"spec": found["spec"]}}).encode()
    )
    claim, _ = read_object(kinds.RESOURCE_CLAIM, json.dumps(found).encode())
    assert template.spec.spec is claim.spec


def test_every_table_has_the_same_key():
    one, _ = read_object(kinds.RESOURCE_CLAIM, json.dumps(body(1)).encode())
    other, _ = read_object(kinds.RESOURCE_CLAIM, json.dumps(body(1)).encode())
    assert one.key is other.key
    assert one.key == "evil/claim-1"


def test_a_compiled_expression_takes_a_few_times_its_text():
    texts = [COSTLY.format(number) for number in range(30)]
    compile_selector(COSTLY.format("warm"))
    assert kept_after(lambda: [compile_selector(text) for text in texts]) < 45 * len(texts[0]) * len(texts)
