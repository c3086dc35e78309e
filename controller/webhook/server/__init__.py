"""The admission server: HTTPS with certificates that renew themselves, reviews, health, metrics.

Apart from the conversion (`controller.webhook`), which commands and simulations use without a
server.
"""

from controller.webhook.server.server import WebhookSettings, serve
