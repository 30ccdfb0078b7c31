"""Commands that move data: capture, snapshots, sync, bootstrap, and the supervised run of all of them."""
