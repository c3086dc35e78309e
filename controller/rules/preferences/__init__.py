"""What pods prefer of nodes: kube-scheduler's Score plugins. Pure."""

from controller.rules.preferences.preferences import NodePreferences, PodPreferences, PreferenceScores
