"""The alerts and the dashboard of docs/monitoring, with a real Prometheus."""
