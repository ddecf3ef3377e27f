"""Firebird's types: their names and lengths, arrays, decimal floats, and one text for one value."""
