"""Metrics, traces, logs and readiness."""
