"""What a refusal is: its reason code, in words of both languages, and the changes that may end it.

Rules and decisions make reasons; events, commands, the dashboard and the queue read them. Pure.
"""

from controller.reasons import catalogue
from controller.reasons.catalogue import CATALOGUE, PLUGINS, english, meaning_of
from controller.reasons.changes import ALWAYS, ANY, FOREIGN, RELEASED, Change
from controller.reasons.reason import Reason, with_command
