"""The contract test kit: runs a plugin, and proves or refutes what it declares."""
