"""Training a head: text that the target itself writes, and a layer that learns to foresee it."""
