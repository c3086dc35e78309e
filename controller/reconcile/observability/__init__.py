"""What operators see: /metrics, /healthz, logs, the usage on ResourceQuotas."""
