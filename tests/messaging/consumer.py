"""The consumer of the example, for tests that kill it: `python -m tests.messaging.consumer …`"""

from examples import inbox_stream
from oncekey.testing.crash import arm_from_environment

if __name__ == "__main__":
    arm_from_environment()
    inbox_stream.main()
