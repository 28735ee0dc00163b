"""What the wheel lacks."""

KERNELS = ("decode", "extend")
