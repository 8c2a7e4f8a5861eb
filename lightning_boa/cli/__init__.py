"""The command line: boa-train, a Hydra application on conf/."""
