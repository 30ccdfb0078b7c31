"""Running `tailrace` as a process or in the test's own, and waiting on conditions."""
