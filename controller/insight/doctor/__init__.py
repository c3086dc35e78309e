"""Diagnosis of a cluster that runs hami-dra: pure checks, each with a fix, over a collected state."""

from controller.insight.doctor.examine import examine
from controller.insight.doctor.model import (
    ClusterObjects,
    DoctorReport,
    InstallationSettings,
    Live,
    Program,
    Raw,
    Right,
    Severity,
    State,
    WebhookSeen,
)
from controller.insight.doctor.rights import ACCOUNTS, needed_rights
