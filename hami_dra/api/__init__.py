"""Kubernetes objects as this project reads them, exact quantities and versions, and every name that users see."""
