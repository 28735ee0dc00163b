"""A backend or a graph runner on memory of the kit's own, and the steps that it walks through."""
