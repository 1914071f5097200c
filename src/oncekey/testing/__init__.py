"""Test what you build on oncekey.

`FakeClock` moves only when told to; `arm` and `disarm` run a function of yours at a named point.
`oncekey.testing.contract` is the contract of a store as tests, `oncekey.testing.crash` makes a
process die at a named point.
"""

from oncekey._system.clock import FakeClock
from oncekey._system.probes import arm, disarm

__all__ = ["FakeClock", "arm", "disarm"]
