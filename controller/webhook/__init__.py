"""Legacy pods to claims: the conversion, for the admission server, `convert`, simulations and the controller.

The server itself is `controller.webhook.server`.
"""

from controller.webhook.admission import Admission, clash_warnings
from controller.webhook.convert import IGNORE, UNCONVERTED, ConversionRefused, Options, asks_for_cards, convert_pod
from controller.webhook.converted import LegacyConversion
from controller.webhook.files import convert_documents
from controller.webhook.installation import ADVICE_WEBHOOK, CONVERT_WEBHOOK, Installation, manifests
from controller.webhook.memory_webhook import memory_webhook
from controller.webhook.notices import Served
from controller.webhook.templates import TemplateCollector, is_same_request
from controller.webhook.unconverted import bypassed, unconverted_namespace
from controller.webhook.workloads import metadata_notices, object_notices
