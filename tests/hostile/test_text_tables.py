"""Tables that outlive objects and are keyed by what tenants write are bounded by bytes, not only by their number of entries."""

import ast
import tracemalloc
from pathlib import Path

import pytest

from controller.cluster.pod_resources import amount
from controller.inventory.model import value_of
from hami_dra.api.config import read_device_config
from hami_dra.api.meta import LabelSelectorRequirement
from hami_dra.api.opaque import problem_of
from hami_dra.api.podclaims import claim_keys
from hami_dra.api.quantity import Quantity
from hami_dra.api.selectors import requirement_problem
from hami_dra.api.semver import SemVer
from hami_dra.cel.attribute import compile_attribute
from hami_dra.cel.errors import CompileError
from tests.cards import pod
from tests.support.examples import examples

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
MANY = examples(450)
"""Texts of 8 KB."""
BY_LENGTH = {
    "controller/scoring/chooser.py": "256 pairs of annotations, 8 KiB at most",
    "controller/scoring/policies.py": "a policy is one of a few words",
    "controller/decide/problems.py": "the key of the fence, which the administrator sets",
    "controller/inventory/layouts.py": "of nodes: instance types and cards",
    "controller/dashboard/render.py": "files of the package",
    "controller/cli": "a command ends",
    "hami_dra/discovery/cdi_specs.py": "files of the driver's own node",
    "hami_dra/vendors/profiles.py": "names of drivers, 63 characters at most",
    "hami_dra/driver": "of the driver's own node",
    "hami_dra/cel/library/text.py": "32 patterns of 1 MiB at most, however short they are",
    "hami_dra/kube/transport.py": "addresses of the API server, and the controller's own queries",
}
"""Files that keep results by a text with `lru_cache`, and why no tenant fills the memory with them."""


def claims_of(text):
    entries = [{"name": f"{text[:900]}{each}", "resourceClaimName": text[:1_000]} for each in range(16)]
    return claim_keys(pod("evil", resourceClaims=entries))


def compiled(text):
    try:
        return compile_attribute(f'device.driver == "{text}"')
    except CompileError:
        return None


TABLES = {
    "quantity": lambda text: Quantity.parse(text.replace("-", "")[:1_000]),
    "amount": lambda text: amount(text, text),
    "value": value_of,
    "version": lambda text: SemVer.parse(f"1.2.3-x{text[:900]}"),
    "requirement": lambda text: requirement_problem(LabelSelectorRequirement(text, "In", (text, text))),
    "parameters": lambda text: problem_of(f'{{"{text}": 1}}'.encode()),
    "configuration": lambda text: read_device_config(f'{{"{text}": 1}}'.encode()),
    "attribute": compiled,
    "claims of a pod": claims_of,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_long_texts_of_objects_that_are_gone_are_not_kept(table):
    """16,384 quantities of 8 KB, and as many amounts: 128 MiB."""
    table("1" * 8_000)
    tracemalloc.start()
    for number in range(MANY):
        table(f"{number:0>8}".ljust(8_000, "7"))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 3 * MIB


def test_no_result_is_kept_by_a_text_without_regard_to_its_length():
    """A function with a text among its parameters has `cached_if_short` in place of `lru_cache`."""
    found = set()
    for path in [*ROOT.glob("hami_dra/**/*.py"), *ROOT.glob("controller/**/*.py")]:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and any(
                "lru_cache" in ast.unparse(each) or ast.unparse(each) == "cache" for each in function.decorator_list
            ):
                types = " ".join(ast.unparse(each.annotation) for each in function.args.args if each.annotation)
                if any(word in types for word in ("str", "bytes", "QuantityText")):
                    found.add(str(path.relative_to(ROOT)))
    assert not [path for path in sorted(found) if not path.startswith(tuple(BY_LENGTH))]
