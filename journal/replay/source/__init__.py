"""Journals as tables of Spark: which there are, how they are read, and conditions on them."""
