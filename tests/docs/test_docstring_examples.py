"""The examples in docstrings: each is run, and the places that need one have one."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for top in ("controller", "hami_dra")
    for path in (ROOT / top).rglob("*.py")
    if ">>> " in path.read_text()
)
NEED_ONE = {
    "controller.cluster.incremental": ["changes", "derived_column", "growth", "node_scores", "saturation"],
    "controller.cluster": ["pod_resources"],
    "controller.scoring": ["device_selection", "fair_share", "formulas", "node_views", "policies"],
    "controller.allocation": ["bounds", "capacity", "first_reasons"],
    "controller.decide": ["pre_score", "quotas", "ranked_nodes"],
}
"""By package: modules with formulas or array tricks that a reader cannot check at sight."""


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_hold(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("module", [f"{package}.{name}" for package, names in NEED_ONE.items() for name in names])
def test_formulas_and_array_tricks_have_an_example(module):
    assert module in MODULES
