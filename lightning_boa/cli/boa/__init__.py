"""The command `boa`: plans, simulates, reports on runs, and looks at the machine."""
