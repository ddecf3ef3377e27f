"""Fixtures of the shipper's tests."""

from ship_fixtures import folder, make_ship, ship

__all__ = ["folder", "make_ship", "ship"]
