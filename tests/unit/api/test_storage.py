"""Storage objects and the volumes of pods: what is read, what is dropped, what is shared."""

import msgspec
import pytest

from hami_dra.api import kinds, names
from hami_dra.api.podclaims import volume_claim_keys
from hami_dra.kube.decoding import read_object

CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "model"}}


def read(kind, raw):
    found, problem = read_object(kind, msgspec.json.encode(raw))
    assert problem == ""
    return found


def pod(*volumes, name="p"):
    return read(kinds.POD, {"metadata": {"name": name, "namespace": "team"}, "spec": {"volumes": list(volumes)}})


def volume(**spec):
    return read(kinds.PERSISTENT_VOLUME, {"metadata": {"name": "v"}, "spec": spec})


def claim(annotations=None, **spec):
    metadata = {"name": "c", "namespace": "team", "annotations": annotations or {}}
    return read(kinds.PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})


def test_volumes_that_decide_nothing_about_the_node_are_dropped():
    token = {"name": "kube-api-access-x7k2p", "projected": {"sources": [{"configMap": {"name": "ca"}}]}}
    unknown = {"name": "new", "volumeOfTheFuture": {"anything": [1, None, {"deep": "text"}]}}
    assert pod(token, unknown).spec.volumes == ()
    assert [each.name for each in pod(token, CLAIM, unknown).spec.volumes] == ["data"]


def test_pods_with_equal_volumes_share_them():
    assert pod(CLAIM, name="a").spec.volumes is pod(CLAIM, name="b").spec.volumes


def test_volumes_of_any_length_are_read_and_long_ones_are_not_kept_for_others():
    many = [{"name": str(number), "rbd": {"image": "i", "monitors": ["m"] * 50}} for number in range(20)]
    assert len(pod(*many).spec.volumes) == 20
    assert pod(*many, name="a").spec.volumes is not pod(*many, name="b").spec.volumes


def test_a_pod_names_its_claims_and_those_generated_for_it():
    ephemeral = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    assert volume_claim_keys(pod(CLAIM, ephemeral)) == ["team/model", "team/p-scratch"]


@pytest.mark.parametrize(
    ("annotations", "spec", "storage_class"),
    [
        ({}, {}, ""),
        ({}, {"storageClassName": "fast"}, "fast"),
        ({names.BETA_STORAGE_CLASS: "old"}, {"storageClassName": "fast"}, "old"),
        ({names.BETA_STORAGE_CLASS: ""}, {"storageClassName": "fast"}, ""),
    ],
)
def test_the_annotation_of_old_names_the_class_first(annotations, spec, storage_class):
    assert claim(annotations, **spec).storage_class == storage_class


def test_a_claim_is_bound_when_its_binding_is_complete():
    assert not claim(volumeName="v").is_fully_bound
    assert claim({names.BIND_COMPLETED: "yes"}, volumeName="v").is_fully_bound
    assert not claim({names.BIND_COMPLETED: "yes"}).is_fully_bound


def test_annotations_that_are_not_read_are_dropped_and_long_ones_are_cut():
    found = claim({names.SELECTED_NODE: "n" * 100_000, "mine": "x"})
    assert set(found.metadata.annotations) == {names.SELECTED_NODE}
    assert len(found.selected_node) < 100


def test_volumes_of_one_zone_share_their_affinity():
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
    one, other = (volume(nodeAffinity=affinity, capacity={"storage": size, "iops": "9"}) for size in ("1Gi", "2Gi"))
    assert one.spec.node_affinity is other.spec.node_affinity
    assert one.spec.capacity.storage == "1Gi"


def test_a_node_without_csi_drivers_has_null():
    """As kubelet writes it."""
    assert read(kinds.CSI_NODE, {"metadata": {"name": "n"}, "spec": {"drivers": None}}).spec.drivers == ()
    (driver,) = read(kinds.CSI_NODE, {"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d"}]}}).spec.drivers
    assert driver.name == "d"
