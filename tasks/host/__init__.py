"""Host services that every process of ours uses: locks, logs, isolation, interrupts."""
