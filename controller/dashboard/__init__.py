"""The page: what the cards of a cluster hold and why pods are where they are, for people; read-only, and live.

    app = dashboard_app(source, access)

`app` has the routes, `access` who may look, `source` what is read, `pages` what each page says, `templates/` how. Everything is
rendered here, with autoescape; scripts only put newer fragments in place, so that reading works without them.
"""
