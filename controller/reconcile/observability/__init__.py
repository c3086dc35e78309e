"""What operators see: collectors for /metrics, the log of decisions, the usage on ResourceQuotas."""
