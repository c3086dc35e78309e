"""Kubernetes objects as this project reads them, exact quantities and versions, and public names."""
