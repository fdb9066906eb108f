"""Rules × values × pairs → the tidy table, and the calibration that reads it backwards."""

from sim.tables.rows import calibrate_rows

__all__ = ["calibrate_rows"]
