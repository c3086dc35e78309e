"""What pods prefer of nodes: kube-scheduler's Score plugins, one module per plugin. Pure."""

from controller.rules.preferences.preferences import NodePreferences, PodPreferences, PreferenceScores
