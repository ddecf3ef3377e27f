"""The state rebuild: the rows of each table at a point of its history."""
