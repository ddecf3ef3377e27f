"""SQL that brings a restored backup forward to a point of the history."""
