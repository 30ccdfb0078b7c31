"""The parts that the supervisor runs: capture, snapshots, a sync per store, maintenance."""
