"""Which pending pod is tried next, and when: queue, fairness, queueing hints, backoff."""
