"""The server's application, as `oncekey recover` imports it: what it is built of is in the
environment.
"""

from __future__ import annotations

import json
import os

from oncekey import Policy
from oncekey.testing.crash import arm_from_environment
from tests.crash.server import build

arm_from_environment()
_store, _ledger, _policy = json.loads(os.environ["ONCEKEY_TEST_APP"])
app = build(_store, _ledger, Policy(**_policy))
