"""What every loop of the controller shares: clock, settings, informers, guarded writes, events, metrics."""
