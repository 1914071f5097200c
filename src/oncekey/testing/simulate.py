"""The simulator is no longer part of the package."""

raise ImportError(
    "oncekey.testing.simulate is no longer part of the package: the simulator needs a checkout of "
    "the repository. Run ./dev simulate there."
)
