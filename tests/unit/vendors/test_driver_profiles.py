"""DriverProfile files: what they mean, and what is said about one that is wrong."""

import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.errors import CommandError
from controller.cli.profile_options import driver_profiles
from hami_dra.api import names
from hami_dra.kube.documents import BadDocument
from hami_dra.vendors.driver_profile_file import DriverProfileFile, InvalidDriverProfile, parse_driver_profile
from hami_dra.vendors.profiles import BUILT_IN_PROFILES, profile_of
from hami_dra.vendors.protocol import DriverProfile

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted((ROOT / "driverprofiles").glob("*.yaml"))
HEAD = {"apiVersion": "hami.io/v1alpha1", "kind": "DriverProfile", "driver": "gpu.example.com"}


def parsed(**fields):
    return parse_driver_profile({**HEAD, **fields})


def refused(**fields):
    with pytest.raises(InvalidDriverProfile) as error:
        parsed(**fields)
    return str(error.value)


def test_a_role_that_is_left_out_is_not_published():
    """But for the PCIe root, which has a standard name; hami-dra's own names are not tried."""
    assert parsed() == DriverProfile(
        driver="gpu.example.com",
        uuid=None,
        product=None,
        index=None,
        link_group=None,
        links=None,
        distance=None,
        numa=None,
        memory=None,
        cores=None,
        shares=None,
    )


def test_attributes_without_a_domain_are_the_drivers():
    found = parsed(
        attributes={"index": "minor", "numaNode": names.ATTR_NUMA_NODE, "partition": {"name": "mode", "values": ["x"]}},
        capacity={"memory": "vram", "shares": "slots"},
        numberInName=2,
        defaultShares=4,
    )
    assert (found.index, found.numa, found.partition) == (
        "gpu.example.com/minor",
        "resource.kubernetes.io/numaNode",
        "gpu.example.com/mode",
    )
    assert (found.memory, found.cores, found.shares, found.default_shares) == ("vram", None, "slots", 4)
    assert (found.number_in_name, found.partition_values) == (2, {"x"})
    assert (found.means_part("x"), found.means_part("y"), found.means_part(None)) == (True, False, False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"apiVersion": "hami.io/v2"}, "apiVersion: it is hami.io/v2; write apiVersion: hami.io/v1alpha1"),
        ({"kind": "Fleet"}, "kind: it is Fleet; write kind: DriverProfile"),
        ({"driver": "GPU"}, "driver: 'GPU': expected `str` matching regex"),
        (
            {"driver": "nvidia.hami.io"},
            "driver: nvidia.hami.io is hami-dra's own driver and needs no profile; remove the file",
        ),
        ({"attribute": {}}, "attribute: no such field; did you mean attributes?"),
        ({"attributes": {"numanode": "n"}}, "attributes.numanode: no such field; did you mean numaNode?"),
        ({"capacity": {"vram": "memory"}}, "capacity.vram: no such field; the fields are memory, cores, shares"),
        (
            {"attributes": {"index": 3}},
            "attributes.index: 3: expected `str`, got `int`; write a name as in the driver's ResourceSlices",
        ),
        ({"attributes": {"partition": {}}}, "attributes.partition.name: it is missing; add it"),
        ({"attributes": []}, "attributes: []: expected `object`, got `array`; write fields below it"),
        ({"numberInName": 0}, "write a number from 1 to 9, or remove the field"),
        ({"defaultShares": "many"}, "write a number from 1 to 1000, or remove the field"),
        (
            {"capacity": {"memory": "size", "cores": "size"}},
            "capacity.memory and capacity.cores: both are size; a capacity has one meaning, remove one of them",
        ),
    ],
    ids=json.dumps,
)
def test_what_is_wrong_is_said_with_the_field_and_the_fix(fields, said):
    assert said in refused(**fields)


def test_a_driver_must_be_named():
    with pytest.raises(InvalidDriverProfile, match=r"^driver: it is missing; write it as in spec\.driver"):
        parse_driver_profile({key: value for key, value in HEAD.items() if key != "driver"})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(
    st.sampled_from(["driver", "attributes", "capacity", "numberInName", "defaultShares", "other"]),
    ANYTHING
    | st.dictionaries(
        st.sampled_from(["index", "partition", "memory", "cores", "values", "name"]), ANYTHING, max_size=3
    ),
    max_size=4,
)


@given(FIELDS)
def test_no_document_has_another_outcome(fields):
    """Read as a profile, or refused; nothing else is raised, whatever the fields are."""
    with suppress(InvalidDriverProfile):
        assert isinstance(parse_driver_profile({**HEAD, **fields}), DriverProfile)


def test_files_are_named_in_errors(tmp_path):
    first, again, empty = tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yaml"
    first.write_text(yaml.safe_dump(HEAD))
    again.write_text(yaml.safe_dump(HEAD))
    empty.write_text("")
    with pytest.raises(CommandError, match=rf"{again}: driver: gpu.example.com has a profile in {first} already"):
        driver_profiles([first, again])
    with pytest.raises(CommandError, match=rf"{empty}: it contains no DriverProfile"):
        driver_profiles([empty])
    again.write_text(yaml.safe_dump({**HEAD, "shares": 3}))
    with pytest.raises(CommandError, match=rf"--manage-profile: {again}: shares: no such field"):
        driver_profiles([again])
    with pytest.raises(BadDocument, match="no such file"):
        driver_profiles([tmp_path / "none.yaml"])


def test_a_file_goes_before_a_built_in_profile(tmp_path):
    file = tmp_path / "nvidia.yaml"
    file.write_text(yaml.safe_dump({**HEAD, "driver": "gpu.nvidia.com", "attributes": {"index": "minor"}}))
    found = driver_profiles([file])
    assert found.of("gpu.nvidia.com").index == "gpu.nvidia.com/minor"
    assert found.of("neuron.aws.com") is profile_of("neuron.aws.com")
    assert driver_profiles(None) is BUILT_IN_PROFILES


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_files_are_named_after_their_driver(path):
    assert [*driver_profiles([path]).given] == [path.stem]


def test_the_schema_has_every_field():
    schema = msgspec.json.schema(DriverProfileFile)
    fields = schema["$defs"]["DriverProfileFile"]["properties"]
    assert set(fields) == {"apiVersion", "kind", "driver", "attributes", "capacity", "numberInName", "defaultShares"}
    assert json.loads((ROOT / "driverprofiles/schema.json").read_text()) == json.loads(json.dumps(schema))
