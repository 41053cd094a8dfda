"""What every process of ours needs of its host: locks, logs, isolation, interrupts."""
