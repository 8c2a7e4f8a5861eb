"""What `boa doctor` looks at: the machine, the software, and a process group under a time limit."""
