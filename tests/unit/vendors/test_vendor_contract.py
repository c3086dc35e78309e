"""Every vendor keeps the contract: those of the registry, and one of another project."""

import sys
from importlib import import_module

import pytest

from hami_dra.vendors.registry import PLUGINS
from tests.support.vendor_contract import VendorContract
from tests.unit.vendors.test_sixth_vendor import SIXTH


def sixth_plugin():
    """The plugin of `tests/support/sixth_vendor`, which is not in the registry."""
    sys.path.insert(0, str(SIXTH))
    try:
        return import_module("acme").PLUGIN
    finally:
        sys.path.remove(str(SIXTH))


@pytest.fixture(scope="module", params=[*(plugin.name for plugin in PLUGINS), "acme"])
def plugin(request):
    if request.param == "acme":
        return sixth_plugin()
    return next(plugin for plugin in PLUGINS if plugin.name == request.param)


class TestEveryVendor(VendorContract):
    """The suite of `tests/support/vendor_contract.py`."""
