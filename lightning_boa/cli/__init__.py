"""The command line: boa-train, a Hydra application on conf/, and boa, which plans, simulates, reports and examines."""
