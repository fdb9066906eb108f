"""Rules × values × pairs → the tidy table, and the calibration that reads it backwards."""
