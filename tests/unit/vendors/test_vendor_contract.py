"""Every vendor keeps the contract: those of the registry, and one of another project."""

import pytest

from hami_dra.vendors.registry import PLUGINS
from tests.support.sixth_installation import sixth_plugin
from tests.support.vendor_contract import VendorContract


@pytest.fixture(scope="module", params=[*(plugin.name for plugin in PLUGINS), "acme"])
def plugin(request):
    if request.param == "acme":
        return sixth_plugin()
    return next(plugin for plugin in PLUGINS if plugin.name == request.param)


class TestEveryVendor(VendorContract):
    """The suite of `tests/support/vendor_contract.py`."""
