"""Prometheus and Grafana for a cluster: scrape configuration, alerts, dashboards."""
