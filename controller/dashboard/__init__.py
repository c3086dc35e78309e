"""The dashboard: what a cluster's cards hold and why pods are where they are; read-only and live.

    app = dashboard_app(source, access)

`app` has the routes, `access` the authorization, `source` the data, `pages` the content of each
page, `templates/` its HTML. Everything is rendered here, with autoescape. Scripts only replace
fragments with newer ones, so reading works without them.
"""

from controller.dashboard.serving import serving
from controller.dashboard.source import Source
