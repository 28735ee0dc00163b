"""Eagle, a speculative algorithm for warcore."""
