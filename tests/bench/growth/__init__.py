"""Growth: what so many stored keys do to claims, to garbage collection, and to a restart."""

from tests.bench.growth.measure import measure
from tests.bench.growth.report import write
from tests.bench.growth.results import Collection, Growth, Point, Restart

__all__ = ["Collection", "Growth", "Point", "Restart", "measure", "write"]
