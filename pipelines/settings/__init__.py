"""Typed settings: load.py finds, merges and validates; recipe.py and site.py say what there is."""
