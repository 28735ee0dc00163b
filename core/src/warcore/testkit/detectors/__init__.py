"""What sees a touch of shared memory, and what makes a race of two."""
