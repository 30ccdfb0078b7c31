"""What is done to a source and a broker by command, outside capture: prepared by `init`, taken away by `remove`."""
