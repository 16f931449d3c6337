"""Scripts for people and CI; the package does not import them."""
