"""The kernels that go through the pairs of a call."""
