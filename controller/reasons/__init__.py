"""What a refusal is: its reason code, in words of both languages, and the changes that may end it.

Rules and decisions make reasons; events, commands, the dashboard and the queue read them. Pure.
"""

from controller.reasons import catalogue
from controller.reasons.catalogue import ALWAYS, ANY, CATALOGUE, FOREIGN, PLUGINS, RELEASED, Change, english, meaning_of
from controller.reasons.reason import Reason, with_command
