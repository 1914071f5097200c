"""Hooks that report events: as log lines, to Prometheus, to OpenTelemetry.

    metrics = PrometheusHook()
    IdempotencyMiddleware(app, ..., hooks=[LoggingHook(), metrics])
    retrying(transport, hooks=[metrics])

`oncekey.metrics._catalogue` has all metrics; docs/metrics.md explains them.
"""

from oncekey.metrics._logs import LoggingHook
from oncekey.metrics.otel import OpenTelemetryHook
from oncekey.metrics.prometheus import PrometheusHook

__all__ = ["LoggingHook", "OpenTelemetryHook", "PrometheusHook"]
