"""Hooks that tell the outside what happened: as log lines, to Prometheus, to OpenTelemetry.

    metrics = PrometheusHook()
    IdempotencyMiddleware(app, ..., hooks=[LoggingHook(), metrics])
    retrying(transport, hooks=[metrics])

What is measured stands in `oncekey.metrics._catalogue`; docs/metrics.md explains it.
"""

from oncekey.metrics._logs import LoggingHook
from oncekey.metrics.otel import OpenTelemetryHook
from oncekey.metrics.prometheus import PrometheusHook

__all__ = ["LoggingHook", "OpenTelemetryHook", "PrometheusHook"]
