"""The flow engine: one smooth rate over the whole cluster. Its governor deals the shares of all rates."""
