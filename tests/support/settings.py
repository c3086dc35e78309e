"""Values of vendors' options, by name: `vendor_settings(card_slices=3)`."""

from hami_dra.api.options import VendorSettings
from hami_dra.vendors.registry import OPTIONS


def vendor_settings(**written):
    by_name = {option.name.replace("-", "_"): option for option in OPTIONS}
    return VendorSettings.of({by_name[name]: value for name, value in written.items()})
