"""Hooks that tell the outside what happened: as log lines, to Prometheus, to OpenTelemetry.

    IdempotencyMiddleware(app, ..., hooks=[LoggingHook(), PrometheusHook()])

What is measured stands in `oncekey.metrics.catalogue`; docs/metrics.md explains it.
"""

from oncekey.metrics.logs import LoggingHook
from oncekey.metrics.otel import OpenTelemetryHook
from oncekey.metrics.prometheus import PrometheusHook

__all__ = ["LoggingHook", "OpenTelemetryHook", "PrometheusHook"]
