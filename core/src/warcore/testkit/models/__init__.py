"""Models under check, and what their outputs are held against."""
